#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/base/host_name.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

/// A process of the run that is dead or cut off.
struct LostProcess {
  i32 rank = 0;
  std::string text;  ///< "[rank 2 on n7] is dead or cut off: ..."
};
/// Whether the run goes on without that process. Called on a thread of its own; must be quick and not throw.
using TakeLost = std::function<bool(const LostProcess&)>;

/// Why a process ends the run.
struct Ending {
  int code = 1;              ///< exit code of all processes
  std::string text{};        ///< the error; the other processes repeat it
  bool of_transfer = false;  ///< a transfer failed, so another process may be dead: if so, all name that one
};

/// The processes of one run: this one alone, or those that a launcher started (mpirun, srun, torchrun).
///
/// Threads: rank(), num_ranks(), local_rank(), alone(), on_lost() and abort() may be called by any thread.
/// gather() is called by one thread at a time, in the same order by all processes; exchanges of a transport
/// may go on beside it.
///
/// Lifetime: one object for each process, made before every transport and destroyed
/// after the last of them.
class Processes {
 public:
  virtual ~Processes() = default;
  virtual i32 rank() const { return 0; }
  virtual i32 num_ranks() const { return 1; }
  /// Among the processes of this machine, as the launcher says: which GPU is this one's. Here by the
  /// variables of MPI's launchers.
  virtual i32 local_rank() const;
  /// Every rank's text, in rank order; collective. Also a barrier.
  virtual std::vector<std::string> gather(const std::string& text) const { return {text}; }
  /// Sets the function that hears of a lost process from now on; empty = none. If none takes the loss, which
  /// is the rule, this process ends. All processes must answer alike. Only those that meet at a store hear of
  /// it: mpirun ends all by itself.
  virtual void on_lost(TakeLost /*take*/) const {}
  /// Tells the others that this process met an error of its own and will end the run: who loses a transfer
  /// with it then names it. Any thread. Only processes that meet at a store hear of it.
  virtual void tell_error(const std::string& /*text*/) const {}
  /// Ends all processes of the run. After a failed transfer it may wait a moment for a process to fall
  /// silent.
  [[noreturn]] virtual void abort(const Ending& ending) const;
  /// Whether messages may go over MPI.
  virtual bool has_mpi() const { return false; }
  bool alone() const { return num_ranks() == 1; }
};

/// The most processes a run may have.
inline constexpr i32 kMaxRanks = 1 << 20;

/// The value of an environment variable, empty when it is not set. Only launchers speak to us so.
using Variables = std::function<std::string(const std::string&)>;
std::string environment_variable(const std::string& name);

/// Says the error of this process on stderr, and ends all processes of the run with it.
[[noreturn]] void end_run(const Processes& processes, const std::exception& error, int code);

/// Compares `mine` over all ranks; collective. Throws ConfigError that names the first rank which differs
/// from rank 0, both texts, and `hint`.
void check_alike(const Processes& processes, const std::string& mine, const std::string& hint);

/// The launcher of this process, by the environment.
struct Launch {
  enum class By { kHand, kMpi, kTorchrun };
  By by = By::kHand;
  i32 num_ranks = 1;
};
/// Throws ConfigError when a count is no number.
Launch read_launch(const Variables& variable);

enum class RunsOn { kCpu, kGpu };

/// How long processes that meet at a store wait for each other.
struct StoreOptions {
  Seconds join_limit = 300;     ///< until all ranks have come
  Seconds gather_limit = 1800;  ///< until all ranks have come to a gather()
  /// A rank that shows no sign of life for so long is dead: the others end within this time.
  Seconds silence = 20;
  /// Called before this process ends because another is dead or ended the run; must be quick and not throw.
  std::function<void()> last_words;
};

/// Joins the other processes of the run, if there are any: over MPI, or, under torchrun, at its store. Throws
/// ConfigError for a CPU run under torchrun (its processes talk over MPI), TransportError when MPI finds
/// another number of processes than the launcher started.
std::unique_ptr<Processes> join_processes(RunsOn device = RunsOn::kCpu, StoreOptions options = {});

}  // namespace hetermoe
