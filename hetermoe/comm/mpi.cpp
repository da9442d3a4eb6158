#include "hetermoe/comm/mpi.h"

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/awaited_list.h"
#include "hetermoe/comm/wire.h"

namespace hetermoe {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail<TransportError>("mpi", "{} failed: {}", call, std::string(text, static_cast<std::size_t>(length)));
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
  Mpi(const Processes& job, std::vector<i32> rank_of)
      : rank_(job.rank()),
        rank_of_(std::move(rank_of)),
        local_(make_in_process_transport(static_cast<i32>(rank_of_.size()))) {
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
    for (std::size_t i = 0; i < out.size(); ++i) {
      const DeviceId peer = call.participants[i];
      if (is_local(peer)) {
        here.push_back(peer);
        here_index.push_back(i);
        here_out.push_back(std::move(out[i]));
      } else {
        sends.bytes[i] = to_bytes(out[i]);
        sends.requests.push_back(send(call, peer, sends.bytes[i]));
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

  bool is_local(DeviceId device) const { return rank_of_[static_cast<std::size_t>(device)] == rank_; }

  /// A lane keeps its order, so messages of one queue between two devices arrive in order: a tag per such
  /// channel is enough.
  int tag(const ExchangeCall& call, DeviceId from, DeviceId to) const {
    const int devices = static_cast<int>(rank_of_.size());
    return (call.queue * devices + from) * devices + to;
  }

  MPI_Request send(const ExchangeCall& call, DeviceId to, const std::vector<char>& bytes) {
    MPI_Request request;
    check(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE,
                    rank_of_[static_cast<std::size_t>(to)], tag(call, call.self, to), comm_, &request),
          "MPI_Isend");
    return request;
  }

  Message receive(const ExchangeCall& call, DeviceId from) {
    const std::string where = fmt::format("device {} {} from device {}", call.self, call.name, from);
    MPI_Message matched;
    MPI_Status status;
    int found = 0;
    const AwaitedList::Entry wait(awaited_, {call.self, call.op, from});
    while (true) {
      check(MPI_Improbe(rank_of_[static_cast<std::size_t>(from)], tag(call, from, call.self), comm_, &found,
                        &matched, &status),
            "MPI_Improbe");
      if (found) break;
      stop_if_aborted(where);
      nap();
    }
    int size = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    Buffers incoming;
    incoming.bytes.emplace_back(static_cast<std::size_t>(size));
    incoming.requests.emplace_back();
    check(MPI_Imrecv(incoming.bytes[0].data(), size, MPI_BYTE, &matched, &incoming.requests[0]),
          "MPI_Imrecv");
    try {
      finish(call, incoming.requests);
    } catch (...) {
      keep_forever(std::move(incoming));
      throw;
    }
    return from_bytes(incoming.bytes[0], where);
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
  std::vector<i32> rank_of_;
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
  const std::string version(text, static_cast<std::size_t>(length));
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
  const int mine = static_cast<int>(text.size());
  std::vector<int> sizes(static_cast<std::size_t>(num_ranks_)),
      begins(static_cast<std::size_t>(num_ranks_) + 1, 0);
  check(MPI_Allgather(&mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  for (std::size_t r = 0; r < sizes.size(); ++r) begins[r + 1] = begins[r] + sizes[r];
  std::string all(static_cast<std::size_t>(begins.back()), '\0');
  check(MPI_Allgatherv(text.data(), mine, MPI_CHAR, all.data(), sizes.data(), begins.data(), MPI_CHAR,
                       MPI_COMM_WORLD),
        "MPI_Allgatherv");
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    texts.push_back(all.substr(static_cast<std::size_t>(begins[r]), static_cast<std::size_t>(sizes[r])));
  }
  return texts;
}

void MpiJob::abort(int code) const {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();
}

std::unique_ptr<Transport> make_mpi_transport(const Processes& job, std::vector<i32> rank_of) {
  return std::make_unique<Mpi>(job, std::move(rank_of));
}

}  // namespace hetermoe
