#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"

namespace hetermoe {

/// Fine-tuning by low-rank adapters.
struct LoraOptions {
  i64 rank = 0;
  double alpha = 16;
  std::vector<std::string> targets = {};
  std::string from = {};
  template <class V>
  void fields(V& v) {
    v("rank", rank,
      "rank of the adapters (LoRA, docs/finetune.md); everything else is frozen. 0 = none, the whole model "
      "is trained",
      between(0, 65536));
    v("alpha", alpha, "adapters act by alpha / rank times their product", above(0));
    v("targets", targets,
      "patterns of names of matrices that have adapters, with * for any text: projections of attention, of "
      "dense and shared MLPs, and of experts. Empty = of attention and of experts, as far as the model has "
      "them");
    v("from", from,
      "a folder of adapters to begin with (adapter_config.json of PEFT, or adapter/ of train.save_hf), which "
      "has rank, alpha and targets; train.init_from is their base. Empty = new ones");
  }
};

}  // namespace hetermoe
