#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/support/more_requests.h"

// How often, and how far, a plan gets slower where there is more to choose from. Usage: monotone_bench
// [first seed] [cases]
int main(int argc, char** argv) {
  using namespace hetermoe;
  const u64 first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const int wanted = argc > 2 ? std::atoi(argv[2]) : 500;
  int cases = 0, slower = 0, much = 0;
  double worst = 1;
  for (u64 seed = first; cases < wanted; ++seed) {
    const PlanRequest request = hetermoe::testing::uneven_request(seed);
    const double before = hetermoe::testing::rate_of(request);
    if (before == 0) continue;
    for (const hetermoe::testing::More& more : hetermoe::testing::more_requests(request)) {
      if (++cases > wanted) break;
      const double share = hetermoe::testing::rate_of(more.request) / before;
      worst = std::min(worst, share);
      slower += share < 0.99, much += share < 0.97;
      if (share >= 0.99) continue;
      std::printf("seed %llu, %s on %d devices, %lld sequences of %lld: %.4f with %s\n",
                  static_cast<unsigned long long>(seed), request.model.name.c_str(),
                  request.cluster.num_devices(), static_cast<long long>(request.sequences),
                  static_cast<long long>(request.seq_len), share, more.what.c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%d cases: %d slower by more than 1 %%, %d by more than 3 %%, the worst %.4f\n", wanted, slower,
              much, worst);
}
