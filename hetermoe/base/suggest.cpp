#include "hetermoe/base/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>

namespace hetermoe {
namespace {

std::string folded(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

bool same_letters(std::string a, std::string b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a == b;
}

}  // namespace

std::string nearest_name(std::string_view got, const std::vector<std::string>& known) {
  const std::string want = folded(got);
  std::string best;
  if (want.empty()) return best;
  // A100 stands for A100-40 or A100-80, and not for A10.
  constexpr std::size_t kWhole = 4;
  for (const std::string& name : known)
    if (want.size() >= kWhole && name.size() > got.size() && name[got.size()] == '-' &&
        folded(name.substr(0, got.size())) == want)
      return name;
  // Of four letters, two others make another word, unless they only changed places.
  constexpr std::size_t kShort = 4;
  std::size_t best_distance = std::max<std::size_t>(2, want.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(want, folded(name));
    if (want.size() <= kShort && distance > 1 && !same_letters(want, folded(name))) continue;
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string known_names_hint(std::string_view got, const std::vector<std::string>& known) {
  return known_names_hint(got, known, known);
}

std::string known_names_hint(std::string_view got, const std::vector<std::string>& known,
                             const std::vector<std::string>& askable) {
  std::string text = fmt::format(" Known: {}.", fmt::join(known, ", "));
  const std::string near = nearest_name(got, askable);
  if (!near.empty()) text += fmt::format(" Did you mean \"{}\"?", near);
  return text;
}

}  // namespace hetermoe
