#pragma once
#include <array>

// What HeterMoE (arXiv 2504.03871 v1, April 2025) publishes, as far as it is compared here. Read from its
// vector figures (error below 0.2 %) and, for the utilisations and the worked example, from its text.
namespace hetermoe::paper {

inline constexpr std::size_t kNumLengths = 8;
using ByLength = std::array<double, kNumLengths>;  ///< 4K, 8K .. 32K tokens per sequence

/// Figure 2: time of the older device over time of the newer one, forward and backward of one module with the
/// sizes of Mixtral-8x7B, at 1K, 2K .. 64K tokens.
struct ModuleSpeedUp {
  const char *newer, *older, *module;
  std::array<double, 7> speed_up;
};
inline constexpr std::array<ModuleSpeedUp, 4> kFigure2 = {{
    {"A40", "V100", "attention", {1.44, 1.65, 1.97, 2.37, 2.86, 3.37, 3.75}},
    {"A40", "V100", "expert", {1.19, 1.19, 1.23, 1.27, 1.31, 1.35, 1.24}},
    {"L40S", "T4", "attention", {6.32, 8.48, 9.90, 10.66, 12.02, 12.30, 13.61}},
    {"L40S", "T4", "expert", {6.64, 7.00, 7.07, 6.62, 6.81, 7.15, 7.51}},
}};

/// Throughput on O1, thousand tokens per second, and HeterMoE's speed-up by Asym-EA.
struct ModelResults {
  const char* model;
  ByLength ep, dist_ep, ep_ideal, hetermoe;
  ByLength asym_ea;
};
inline constexpr std::array<ModelResults, 2> kO1 = {{
    {"w1",
     {171.9, 148.4, 126.1, 116.0, 102.9, 93.9, 84.4, 78.9},
     {115.6, 110.3, 107.5, 99.7, 95.6, 92.7, 88.7, 84.5},
     {194.5, 179.1, 173.7, 152.3, 148.4, 138.8, 119.4, 114.9},
     {199.0, 190.2, 185.8, 179.6, 170.4, 156.6, 146.7, 136.2},
     {1.196, 1.147, 1.150, 1.115, 1.071, 1.044, 1.00, 1.00}},
    {"d1",
     {191.7, 169.0, 147.4, 128.8, 115.1, 102.2, 92.6, 84.5},
     {151.1, 140.2, 137.1, 122.2, 118.3, 114.3, 108.4, 102.2},
     {230.9, 212.1, 195.6, 177.4, 164.9, 153.4, 143.4, 135.1},
     {270.5, 258.2, 254.1, 235.4, 227.9, 205.1, 185.3, 172.9},
     {1.142, 1.090, 1.031, 1.013, 1.00, 1.00, 1.00, 1.00}},
}};

/// Share of time in useful compute, D1 on O1 at 8K: {A40, V100}.
struct Utilization {
  const char* name;
  double newer, older;
};
inline constexpr std::array<Utilization, 2> kUtilization = {{
    {"without Asym-EA", 0.55, 0.89},
    {"with Asym-EA", 0.83, 0.78},
}};

/// Worked example of Asym-EA: end of the last expert op, forward.
struct WorkedExample {
  std::array<int, 3> moved;
  double end;
};
inline constexpr std::array<WorkedExample, 3> kWorkedExample = {
    {{{0, 0, 0}, 40}, {{0, 1, 1}, 36}, {{1, 1, 1}, 36}}};

/// Of the abstract: half of the A40 of a cluster replaced by V100 keep this share of its throughput, on
/// average.
inline constexpr double kKeptThroughput = 0.95;

}  // namespace hetermoe::paper
