#include "hetermoe/comm/nccl_api.h"

#include <dlfcn.h>

#include <cstring>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/nccl_abi.h"

namespace hetermoe {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kOldest = 2700;  // 2.7: the first with send and receive

/// The library's functions, opened once and never closed.
class Library {
 public:
  Library() : handle_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr)
      fail<TransportError>("nccl", "cannot open {}: {}. Install nvidia-nccl or set LD_LIBRARY_PATH", kLibrary,
                           dlerror());
    find(get_version, "ncclGetVersion");
    find(error_string, "ncclGetErrorString");
    check(get_version(&version), "ncclGetVersion");
    if (version < kOldest)
      fail<TransportError>("nccl", "{} has version {}, expected {} or newer", path(), version, kOldest);
    find(get_unique_id, "ncclGetUniqueId");
    find(init_rank, "ncclCommInitRank");
    find(group_start, "ncclGroupStart"), find(group_end, "ncclGroupEnd");
    find(send, "ncclSend"), find(receive, "ncclRecv");
    find(get_async_error, "ncclCommGetAsyncError");
    find(comm_abort, "ncclCommAbort"), find(comm_destroy, "ncclCommDestroy");
  }

  void check(nccl::Result result, const char* call) const {
    if (result == nccl::kSuccess || result == nccl::kInProgress) return;
    fail<TransportError>("nccl", "{} failed: {}", call, error_string(result));
  }
  std::string path() const {
    Dl_info info{};
    return dladdr(reinterpret_cast<const void*>(get_version), &info) != 0 ? info.dli_fname : kLibrary;
  }

  int version = 0;
  nccl::GetVersion* get_version = nullptr;
  nccl::GetErrorString* error_string = nullptr;
  nccl::GetUniqueId* get_unique_id = nullptr;
  nccl::CommInitRank* init_rank = nullptr;
  nccl::GroupCall *group_start = nullptr, *group_end = nullptr;
  nccl::Send* send = nullptr;
  nccl::Receive* receive = nullptr;
  nccl::CommGetAsyncError* get_async_error = nullptr;
  nccl::CommCall *comm_abort = nullptr, *comm_destroy = nullptr;

 private:
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr) fail<TransportError>("nccl", "{} has no {}", kLibrary, name);
  }

  void* handle_;
};

const Library& library() {
  static const Library opened;
  return opened;
}

class RealNccl : public NcclApi {
 public:
  RealNccl() : nccl_(library()) {}

  std::string make_id() override {
    nccl::UniqueId id;
    nccl_.check(nccl_.get_unique_id(&id), "ncclGetUniqueId");
    return {id.internal, sizeof id.internal};
  }
  Communicator join(const std::string& id, i32 rank, i32 num_ranks) override {
    nccl::UniqueId unique;
    HM_CHECK(id.size() == sizeof unique.internal, "an NCCL id has {} bytes, got {}", sizeof unique.internal,
             id.size());
    std::memcpy(unique.internal, id.data(), id.size());
    Communicator communicator = nullptr;
    nccl_.check(nccl_.init_rank(&communicator, num_ranks, unique, rank), "ncclCommInitRank");
    return communicator;
  }
  void begin_group() override { nccl_.check(nccl_.group_start(), "ncclGroupStart"); }
  void end_group() override { nccl_.check(nccl_.group_end(), "ncclGroupEnd"); }
  void send(const void* data, i64 bytes, i32 peer, Communicator communicator, Stream stream) override {
    nccl_.check(nccl_.send(data, static_cast<std::size_t>(bytes), nccl::kBytes, peer, communicator, stream),
                "ncclSend");
  }
  void receive(void* data, i64 bytes, i32 peer, Communicator communicator, Stream stream) override {
    nccl_.check(
        nccl_.receive(data, static_cast<std::size_t>(bytes), nccl::kBytes, peer, communicator, stream),
        "ncclRecv");
  }
  void check(Communicator communicator) override {
    nccl::Result result = nccl::kSuccess;
    nccl_.check(nccl_.get_async_error(communicator, &result), "ncclCommGetAsyncError");
    nccl_.check(result, "a transfer");
  }
  void abort(Communicator communicator) override { nccl_.comm_abort(communicator); }
  void leave(Communicator communicator) override { nccl_.comm_destroy(communicator); }

 private:
  const Library& nccl_;
};

}  // namespace

std::unique_ptr<NcclApi> open_nccl() { return std::make_unique<RealNccl>(); }

std::string nccl_description() {
  try {
    const int version = library().version;
    const int major = version < 10000 ? 1000 : 10000;  // the code of a version changed with 2.9
    return fmt::format("NCCL {}.{}.{} ({})", version / major, version / 100 % 100, version % 100,
                       library().path());
  } catch (const TransportError& error) {
    return error.what();
  }
}

}  // namespace hetermoe
