#include "hetermoe/schedule/accesses.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<Buffer>::names() {
  static const std::vector<std::string> all = names_of_all<Buffer>({"hidden",
                                                                    "residual",
                                                                    "send",
                                                                    "routing",
                                                                    "saved_attention",
                                                                    "left_attention",
                                                                    "load",
                                                                    "rows",
                                                                    "saved_experts",
                                                                    "left_experts",
                                                                    "out",
                                                                    "returned",
                                                                    "move_out",
                                                                    "d_hidden",
                                                                    "d_out",
                                                                    "d_rows",
                                                                    "d_send",
                                                                    "d_move",
                                                                    "counts",
                                                                    "balance",
                                                                    "grad",
                                                                    "norm",
                                                                    "figures",
                                                                    "params",
                                                                    "published",
                                                                    "taken",
                                                                    "weights",
                                                                    "slot",
                                                                    "host_hidden",
                                                                    "tally",
                                                                    "guest",
                                                                    "guest_turn",
                                                                    "guest_grad"});
  return all;
}

}  // namespace hetermoe
