#include "hetermoe/comm/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/awaited_list.h"
#include "hetermoe/comm/mpi_tags.h"
#include "hetermoe/comm/wire.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/device/host_copy.h"

namespace hetermoe {
namespace {

/// What the standard promises of every MPI.
constexpr i64 kLargestTagEverywhere = 32767;

/// Bytes that one call gathers from all ranks together.
constexpr i64 kMostGathered = i64{1} << 30;

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail<TransportError>("mpi", "{} failed: {}", call, std::string(text, idx(length)));
}

i64 largest_tag() {
  int* largest = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &found), "MPI_Comm_get_attr");
  return found != 0 ? *largest : kLargestTagEverywhere;
}

/// MPI has no asynchronous progress and its waits spin: poll, and give the core away in between.
void nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

/// Bytes that MPI reads or writes, and the requests that do.
struct Buffers {
  std::vector<std::vector<char>> bytes;
  std::vector<MPI_Request> requests;
};

/// MPI cannot take back a send: what an aborted exchange leaves unfinished must stay where it is.
void keep_forever(Buffers buffers) {
  static std::mutex mutex;
  static std::vector<Buffers> all;
  const std::lock_guard lock(mutex);
  all.push_back(std::move(buffers));
}

class Mpi : public Transport {
 public:
  Mpi(const Processes& job, std::vector<i32> rank_of, MpiOptions options)
      : rank_(job.rank()),
        options_(options),
        rank_of_(std::move(rank_of)),
        tags_(rank_of_, largest_tag()),
        local_(make_in_process_transport(static_cast<i32>(rank_of_.size()))) {
    HM_CHECK(options_.block > 0 && options_.block <= idx(std::numeric_limits<int>::max()),
             "MPI takes pieces of 1 to 2^31 - 1 bytes, got {}", options_.block);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  /// After an abort messages that nobody took may be left, which a later communicator must not find in the
  /// place of this one: it is not given back.
  ~Mpi() override {
    if (!aborted_) MPI_Comm_free(&comm_);
  }

  std::string name() const override { return "mpi"; }

  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    Buffers sends;
    try {
      return exchange(call, std::move(out), sends);
    } catch (...) {
      keep_forever(std::move(sends));
      throw;
    }
  }

  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(abort_mutex_);
      if (!aborted_) reason_ = reason;
      aborted_ = true;
    }
    local_->abort(reason);
  }

  std::vector<AwaitedMessage> awaited() const override {
    std::vector<AwaitedMessage> all = awaited_.all();
    const std::vector<AwaitedMessage> local = local_->awaited();
    all.insert(all.end(), local.begin(), local.end());
    return all;
  }

 private:
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out, Buffers& sends) {
    std::vector<Message> in(out.size());
    std::vector<DeviceId> here;
    std::vector<std::size_t> here_index;
    std::vector<Message> here_out;
    sends.bytes.resize(out.size());
    bring_to_host(call, out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const DeviceId peer = call.participants[i];
      if (is_local(peer)) {
        here.push_back(peer);
        here_index.push_back(i);
        here_out.push_back(std::move(out[i]));
      } else {
        sends.bytes[i] = to_bytes(stamp_of(call), std::exchange(out[i], {}));
        send(call, peer, sends.bytes[i], sends.requests);
      }
    }
    ExchangeCall local_call = call;
    local_call.participants = here;
    std::vector<Message> here_in = local_->exchange(local_call, std::move(here_out));
    for (std::size_t i = 0; i < here.size(); ++i) in[here_index[i]] = std::move(here_in[i]);
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!is_local(call.participants[i])) in[i] = receive(call, call.participants[i]);
    }
    finish(call, sends.requests);
    return in;
  }

  /// What leaves this process. Waits once for all of it.
  void bring_to_host(const ExchangeCall& call, std::vector<Message>& out) const {
    if (call.where.is_cpu()) return;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (is_local(call.participants[i])) continue;
      for (at::Tensor& tensor : out[i].tensors) tensor = start_to_host(tensor);
    }
    finish_stream(call.where);
  }

  bool is_local(DeviceId device) const { return rank_of(device) == rank_; }

  i32 rank_of(DeviceId device) const {
    const i32 rank = rank_of_[idx(device)];
    HM_CHECK(rank != kNoRank, "device {} takes part in a transfer, but is idle", device);
    return rank;
  }

  /// A message travels as full blocks and a last one that is shorter, maybe empty. A lane keeps its order, so
  /// messages of one queue between two devices arrive in order, and so do the blocks of each: a tag for such
  /// a channel is enough.
  void send(const ExchangeCall& call, DeviceId to, const std::vector<char>& bytes,
            std::vector<MPI_Request>& requests) {
    const int tag = tags_.of(call.queue, call.self, to);
    for (std::size_t begin = 0; begin <= bytes.size(); begin += options_.block) {
      const std::size_t size = std::min(options_.block, bytes.size() - begin);
      check(MPI_Isend(bytes.data() + begin, static_cast<int>(size), MPI_BYTE, rank_of(to), tag, comm_,
                      &requests.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Isend");
    }
  }

  Message receive(const ExchangeCall& call, DeviceId from) {
    const std::string where = fmt::format("device {} {} from device {}", call.self, call.name, from);
    const AwaitedList::Entry wait(awaited_, {call.self, call.op, from});
    std::vector<char> bytes;
    while (receive_block(call, from, where, bytes) == options_.block) continue;
    Message message = from_bytes(bytes, stamp_of(call), where);
    for (at::Tensor& tensor : message.tensors) tensor = to_device(tensor, call.where);
    return message;
  }

  /// Appends the next block and returns its size.
  std::size_t receive_block(const ExchangeCall& call, DeviceId from, const std::string& where,
                            std::vector<char>& bytes) {
    const int tag = tags_.of(call.queue, from, call.self);
    MPI_Message matched;
    MPI_Status status;
    for (int found = 0; !found;) {
      check(MPI_Improbe(rank_of(from), tag, comm_, &found, &matched, &status), "MPI_Improbe");
      if (found) break;
      stop_if_aborted(where);
      nap();
    }
    int size = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    const std::size_t begin = bytes.size();
    bytes.resize(begin + idx(size));
    Buffers incoming;
    incoming.bytes.push_back(std::move(bytes));
    incoming.requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Imrecv(incoming.bytes[0].data() + begin, size, MPI_BYTE, &matched, &incoming.requests[0]),
          "MPI_Imrecv");
    try {
      finish(call, incoming.requests);
    } catch (...) {
      keep_forever(std::move(incoming));
      throw;
    }
    bytes = std::move(incoming.bytes[0]);
    return idx(size);
  }

  void finish(const ExchangeCall& call, std::vector<MPI_Request>& requests) {
    int done = requests.empty() ? 1 : 0;
    while (!done) {
      check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
      if (done) return;
      stop_if_aborted(call.name);
      nap();
    }
  }

  void stop_if_aborted(const std::string& where) const {
    if (!aborted_) return;
    const std::lock_guard lock(abort_mutex_);
    fail<TransportError>(where, "was aborted: {}", reason_);
  }

  i32 rank_;
  MpiOptions options_;
  std::vector<i32> rank_of_;
  MpiTags tags_;
  std::unique_ptr<Transport> local_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  AwaitedList awaited_;
  std::atomic<bool> aborted_ = false;
  mutable std::mutex abort_mutex_;
  std::string reason_;
};

}  // namespace

bool mpi_is_available() { return true; }

std::string mpi_description() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, idx(length));
  return version.substr(0, version.find(','));
}

MpiJob::MpiJob() {
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_MULTIPLE) {
    fail<TransportError>("mpi", "the library gives thread level {}, expected MPI_THREAD_MULTIPLE", provided);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks_);
}

MpiJob::~MpiJob() { MPI_Finalize(); }

std::vector<std::string> MpiJob::gather(const std::string& text) const {
  const auto mine = static_cast<i64>(text.size());
  std::vector<i64> sizes(idx(num_ranks_));
  check(MPI_Allgather(&mine, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, MPI_COMM_WORLD), "MPI_Allgather");
  std::vector<std::string> texts(idx(num_ranks_));
  const i64 longest = *std::max_element(sizes.begin(), sizes.end());
  // In rounds: MPI counts all that one call gathers in an int.
  const i64 most = std::max<i64>(1, kMostGathered / num_ranks_);
  for (i64 begin = 0; begin < longest; begin += most) {
    std::vector<int> counts, begins;
    int total = 0;
    for (const i64 size : sizes) {
      begins.push_back(total);
      counts.push_back(static_cast<int>(std::clamp<i64>(size - begin, 0, most)));
      total += counts.back();
    }
    std::string all(idx(total), '\0');
    check(MPI_Allgatherv(text.data() + std::min(begin, mine), counts[idx(rank_)], MPI_CHAR, all.data(),
                         counts.data(), begins.data(), MPI_CHAR, MPI_COMM_WORLD),
          "MPI_Allgatherv");
    for (std::size_t r = 0; r < texts.size(); ++r) texts[r].append(all, idx(begins[r]), idx(counts[r]));
  }
  return texts;
}

void MpiJob::abort(const Ending& ending) const {
  MPI_Abort(MPI_COMM_WORLD, ending.code);
  std::abort();
}

std::unique_ptr<Transport> make_mpi_transport(const Processes& job, std::vector<i32> rank_of,
                                              MpiOptions options) {
  return std::make_unique<Mpi>(job, std::move(rank_of), options);
}

}  // namespace hetermoe
