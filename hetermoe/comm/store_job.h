#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"

// Processes that meet at a key-value store (c10d::TCPStore), as torchrun and its like start them: no MPI.
namespace hetermoe {

class KeyStore;
class StoreGather;
class Watch;

/// Data that the launcher gives each process of a run.
struct StoreAddress {
  i32 rank = 0, local_rank = 0, num_ranks = 1;
  std::string host;           ///< of the store
  i32 port = 0;               ///< of the store
  bool hosted = false;        ///< the launcher holds the store; else rank 0 does
  std::string attempt = "0";  ///< number of the launcher's restarts: an earlier run's keys are not read
};
/// From RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and what torchrun says of a store of its
/// own. Throws ConfigError for what is missing, no number or out of range.
StoreAddress read_store_address(const Variables& variable);

/// The processes of such a run. A thread of each sends the others signs of life. When another process falls
/// silent or rank 0's store is gone, it ends this process with exit code 1 and a line that names rank and
/// host. A function of on_lost() may take the loss of a process, not that of the store. A rank whose
/// StoreJob was destroyed has left in peace. Data of rank 0 alone, such as the id with which communicators of
/// NCCL begin, goes to all by gather(): bytes of any kind and length are allowed.
class StoreJob : public Processes {
 public:
  /// Waits for all ranks. Throws ConfigError when ranks were started differently or the port is in use,
  /// TransportError when there is no answer or, naming them, ranks do not come.
  explicit StoreJob(const StoreAddress& address, StoreOptions options = {});
  /// Rank 0 waits here until the others have left, if it holds the store; not for long after an error.
  ~StoreJob() override;
  StoreJob(const StoreJob&) = delete;
  StoreJob& operator=(const StoreJob&) = delete;

  i32 rank() const override { return address_.rank; }
  i32 num_ranks() const override { return address_.num_ranks; }
  /// Index among the processes of this host.
  i32 local_rank() const override { return address_.local_rank; }
  /// One thread at a time. Throws TransportError that names ranks which do not come in time or have left.
  std::vector<std::string> gather(const std::string& text) const override;
  void on_lost(TakeLost take) const override;
  void tell_error(const std::string& text) const override;
  [[noreturn]] void abort(const Ending& ending) const override;

 private:
  void join();
  std::vector<std::string> gather(const std::string& text, Seconds limit) const;

  StoreAddress address_;
  StoreOptions options_;
  std::unique_ptr<KeyStore> store_;
  std::unique_ptr<StoreGather> gather_;
  std::unique_ptr<Watch> watch_;
};

/// The processes of a run that torchrun started, or another launcher that sets its variables.
std::unique_ptr<Processes> join_store(const StoreAddress& address, StoreOptions options = {});

}  // namespace hetermoe
