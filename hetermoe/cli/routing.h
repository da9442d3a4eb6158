#pragma once
#include <memory>
#include <optional>
#include <string>

#include "hetermoe/cli/command.h"
#include "hetermoe/routing/trace_routing.h"

// The commands below `hetermoe routing`, one file each.
namespace hetermoe {

std::function<int()> make_routing_make(Flags& flags);
std::function<int()> make_routing_analyse(Flags& flags);
std::function<int()> make_routing_import(Flags& flags);
std::function<int()> make_routing_balance(Flags& flags);
std::function<int()> make_routing_cluster(Flags& flags);
std::function<int()> make_routing_record(Flags& flags);

/// Steps of a trace: "A..B", "A" or empty for all.
struct StepRange {
  i64 first = 0, last = 0;
};
StepRange parse_steps(const std::string& text, const std::string& where);

/// Opens a trace and says on stderr what of it is not whole. Throws InputError when no step is.
RoutingTrace open_trace(const std::string& path);

/// Throws InputError when the trace does not fit the model; says on stderr where it has another's name.
void check_model(const TraceHeader& header, const ModelConfig& model, const std::string& where);

/// "FILE", "FILE:STEP" or "FILE:A..B" as a file and steps; a file whose name has a colon is taken as it is.
std::pair<std::string, std::string> trace_and_steps(const std::string& reference);

/// "FILE", "FILE:STEP" or "FILE:A..B" as a load; without a step the last one. Throws ConfigError, IoError and
/// InputError.
TraceRouting load_trace_routing(const std::string& reference, const ModelConfig& model);

inline constexpr const char* kRoutingHelp =
    "how tokens choose experts: uniform, zipf:EXPONENT, or as a routing trace says: FILE (its last step), "
    "FILE:STEP, FILE:A..B";
/// The load that such a text names. Throws as load_trace_routing().
std::shared_ptr<const RoutingLoad> routing_load_of(const std::string& text, const ModelConfig& model);

/// Says on stderr where a step of the trace has more sequences than the plan's, which takes the first.
void tell_unused(const TraceRouting& step, const Plan& plan);

}  // namespace hetermoe
