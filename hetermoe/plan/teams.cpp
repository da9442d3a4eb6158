#include "hetermoe/plan/teams.h"

#include <algorithm>
#include <span>
#include <utility>

namespace hetermoe {

i64 sequences_of(const ShareRow& row) {
  i64 sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) sum += begins_team(row, i) ? row[i].sequences : 0;
  return sum;
}

bool has_teams(const Plan& plan) {
  return std::any_of(plan.groups.begin(), plan.groups.end(), [](const Group& group) {
    return std::any_of(group.layers.begin(), group.layers.end(), [](const LayerPlacement& layer) {
      return std::any_of(layer.attention.begin(), layer.attention.end(),
                         [](const ShareRow& row) { return has_teams(row); });
    });
  });
}

namespace {

class TeamChecker {
 public:
  TeamChecker(i64 seq_len, const ModelConfig& model, const std::string& where)
      : seq_len_(seq_len), model_(model), where_(where) {}

  std::vector<std::string> run(const ShareRow& row) {
    check(row);
    return std::move(faults_);
  }

 private:
  template <class... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format("[{}] {}", where_, fmt::format(format, std::forward<Args>(args)...)));
  }

  void check(const ShareRow& row) {
    const bool teams = has_teams(row);
    for (const Share& share : row) {
      if ((share.team >= 0) != teams) {
        fault("device {} is in {} beside devices that are {}, expected teams in all shares or in none",
              share.device, teams ? "no team" : "a team", teams ? "in one" : "in none");
        return;
      }
      if (!teams && (share.tokens != 0 || share.heads != 0))
        fault("device {} has {} tokens and {} heads, but is in no team: expected neither, or team",
              share.device, share.tokens, share.heads);
    }
    i32 number = 0;
    for (std::size_t i = 0; teams && i < row.size(); ++i) {
      if (!begins_team(row, i) || row[i].team == number++) continue;
      fault("team {} is number {} of its row, expected numbers in the order of the row", row[i].team,
            number - 1);
      return;
    }
    for (std::size_t begin = 0, end = 0; teams && begin < row.size(); begin = end) {
      for (end = begin + 1; end < row.size() && !begins_team(row, end);) ++end;
      check_team({row.data() + begin, end - begin});
    }
  }

  /// Whether all that a team has is divided among its devices.
  void check_team(std::span<const Share> team) {
    i64 tokens = 0, heads = 0;
    for (const Share& share : team) {
      tokens += share.tokens, heads += share.heads;
      if (share.tokens < 0 || share.heads < 0)
        fault("device {} has {} tokens and {} heads, expected none below 0", share.device, share.tokens,
              share.heads);
      if (share.sequences != team[0].sequences)
        fault("device {} has {} sequences, but device {} of the same team has {}", share.device,
              share.sequences, team[0].device, team[0].sequences);
    }
    const i64 expected = team[0].sequences * seq_len_;
    if (tokens != expected)
      fault("tokens of team {} add up to {}, expected {}: {} sequences of {}", team[0].team, tokens, expected,
            team[0].sequences, seq_len_);
    if (heads != model_.num_heads)
      fault("heads of team {} add up to {}, but model {} has {} query heads", team[0].team, heads,
            model_.name, model_.num_heads);
  }

  const i64 seq_len_;
  const ModelConfig& model_;
  const std::string& where_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> team_faults(const ShareRow& row, i64 seq_len, const ModelConfig& model,
                                     const std::string& where) {
  return TeamChecker(seq_len, model, where).run(row);
}

std::vector<std::string> team_layer_faults(const LayerPlacement& layer, const std::string& where) {
  const auto with_teams = std::count_if(layer.attention.begin(), layer.attention.end(),
                                        [](const ShareRow& row) { return has_teams(row); });
  if (with_teams == 0) return {};
  std::vector<std::string> faults;
  if (with_teams < static_cast<std::ptrdiff_t>(layer.attention.size()))
    faults.push_back(fmt::format(
        "[{}.attention] has teams in {} of {} rows, expected teams in all microbatches or in none", where,
        with_teams, layer.attention.size()));
  const auto refuse = [&](bool found, const char* key, const char* got, const char* expected) {
    if (!found) return;
    faults.push_back(fmt::format("[{}.{}] got {} in a layer whose attention part has teams, expected {}",
                                 where, key, got, expected));
  };
  refuse(!layer.attention_backward.empty(), "attention_backward", "shares of its own", "none");
  refuse(layer.experts_at == ExpertsAt::kSources, "experts_at", "sources", "owners");
  return faults;
}

}  // namespace hetermoe
