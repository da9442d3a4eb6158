#pragma once
#include "hetermoe/base/fields.h"

namespace hetermoe {

/// When a run writes checkpoints, and whether it goes on from them.
struct CheckpointOptions {
  i64 every = 0;
  i64 keep = 2;
  bool resume = true;
  bool async = true;
  template <class V>
  void fields(V& v) {
    v("every", every, "steps between checkpoints (and one when the run is stopped), 0 = none", at_least(0));
    v("keep", keep, "newest checkpoints that are kept", at_least(1));
    v("resume", resume,
      "go on from the newest checkpoint of the output folder that can be read (when none can, the run "
      "stops); "
      "false: begin anew");
    v("async", async, "write while the training goes on");
  }
};

}  // namespace hetermoe
