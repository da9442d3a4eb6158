#pragma once
#include <memory>
#include <string>

#include "hetermoe/base/types.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/device/stream.h"

namespace hetermoe {

/// The functions of NCCL that the NCCL transport needs. The real library is opened at run time; tests put a
/// recording one in its place. All throw TransportError with NCCL's own words.
class NcclApi {
 public:
  using Communicator = void*;
  using Stream = void*;  ///< cudaStream_t
  virtual ~NcclApi() = default;

  /// Names a communicator that is yet to be; one rank makes it and tells the others.
  virtual std::string make_id() = 0;
  /// Collective over all ranks that were told the id.
  virtual Communicator join(const std::string& id, i32 rank, i32 num_ranks) = 0;

  /// The calls between the two are one launch.
  virtual void begin_group() = 0;
  virtual void end_group() = 0;
  virtual void send(const void* data, i64 bytes, i32 peer, Communicator communicator, Stream stream) = 0;
  virtual void receive(void* data, i64 bytes, i32 peer, Communicator communicator, Stream stream) = 0;

  /// Whether what the calling thread launched on its stream has ended.
  virtual bool has_ended(c10::Device device) { return stream_has_ended(device); }
  /// An event after that; null where nothing can be launched without waiting for it.
  virtual EventPtr record(c10::Device device) { return record_event(device); }
  /// A tensor of the host on the device, and one of the device on the host after what this thread launched.
  /// Neither waits.
  virtual at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
    return hetermoe::to_device(tensor, device);
  }
  virtual at::Tensor start_to_host(const at::Tensor& tensor) { return hetermoe::start_to_host(tensor); }
  /// Throws when the communicator failed in the background: a peer or a link is gone.
  virtual void check(Communicator communicator) = 0;
  /// Ends a communicator whatever it is doing; launches that wait return with an error. May be called by any
  /// thread. May wait for transfers of other communicators, and so until these are aborted as well.
  virtual void abort(Communicator communicator) = 0;
  /// Ends a communicator on which nothing is under way.
  virtual void leave(Communicator communicator) = 0;
};

/// Opens libnccl.so.2. Throws TransportError when there is none, or when it is older than send and receive
/// (2.7).
std::unique_ptr<NcclApi> open_nccl();
/// Version and path of the library that open_nccl() opens, or why it cannot.
std::string nccl_description();

}  // namespace hetermoe
