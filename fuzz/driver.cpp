#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/base/hash.h"
#include "hetermoe/base/json.h"

// A main program for compilers without libFuzzer: it mutates seeds at random, without knowing what an input
// covers. It takes libFuzzer's flags, as far as ./dev uses them:
//   -max_total_time=SECONDS  -runs=NUMBER  -timeout=SECONDS for one input  -seed=NUMBER
//   -artifact_prefix=FOLDER/
// and a folder of seeds, or a single file, which is run once. An input that ends the program is kept as a
// file.

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace hetermoe::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxSize = 16384;

struct Flags {
  double max_total_time = 0;  ///< s, 0 = no limit
  double runs = 0;            ///< 0 = no limit
  unsigned timeout = 10;      ///< s
  u64 seed = 1;
  std::string artifact_prefix = "./", path;
};

Flags read_flags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const std::size_t equal = flag.find('=');
    const std::string name = flag.substr(0, equal);
    const std::string value = equal == std::string::npos ? "" : flag.substr(equal + 1);
    if (flag[0] != '-') flags.path = flag;
    if (name == "-max_total_time") flags.max_total_time = std::stod(value);
    if (name == "-runs") flags.runs = std::stod(value);
    if (name == "-timeout") flags.timeout = static_cast<unsigned>(std::stoul(value));
    if (name == "-seed") flags.seed = std::stoull(value);
    if (name == "-artifact_prefix") flags.artifact_prefix = value;
  }
  return flags;
}

class Random {
 public:
  explicit Random(u64 seed) : state_(seed) {}
  u64 next() { return splitmix64(state_++); }
  /// 0 to end - 1; 0 where end is 0.
  std::size_t below(std::size_t end) { return end == 0 ? 0 : static_cast<std::size_t>(next() % end); }

 private:
  u64 state_;
};

/// Texts that readers treat in a special way.
constexpr const char* kWords[] = {"-1",
                                  "0",
                                  "1e308",
                                  "-1e308",
                                  "1e400",
                                  "9223372036854775807",
                                  "-9223372036854775808",
                                  "18446744073709551616",
                                  "2147483648",
                                  "4294967296",
                                  "65536",
                                  "null",
                                  "true",
                                  "nan",
                                  ".inf",
                                  "[]",
                                  "{}",
                                  "[[[[",
                                  "{\"a\":",
                                  "\"\"",
                                  "&a",
                                  "*a",
                                  "<<:",
                                  "\xff",
                                  "\\u0000",
                                  "\n",
                                  ": ",
                                  " | ",
                                  "- ",
                                  "step-",
                                  "1.5"};

/// A digit run of `text` from `at` on, for replacing whole numbers.
std::size_t end_of_number(const std::string& text, std::size_t at) {
  while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
  return at;
}

void replace_number(std::string& text, Random& random) {
  const std::size_t from = std::min(text.find_first_of("0123456789", random.below(text.size())), text.size());
  text.replace(from, end_of_number(text, from) - from, kWords[random.below(std::size(kWords))]);
}

void mutate_once(std::string& text, const std::vector<std::string>& seeds, Random& random) {
  const std::size_t at = random.below(text.size() + 1);
  switch (random.below(8)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
      break;
    case 1:
      text.insert(at, 1, static_cast<char>(random.next()));
      break;
    case 2:
      text.erase(at, random.below(text.size() - at + 1) % 64);
      break;
    case 3:
      text.insert(at, kWords[random.below(std::size(kWords))]);
      break;
    case 4:
      if (!text.empty()) replace_number(text, random);
      break;
    case 5: {  // a part of the text once more, somewhere else
      const std::size_t from = random.below(text.size());
      text.insert(at, text.substr(from, random.below(128)));
      break;
    }
    case 6: {  // go on as another seed does
      const std::string& other = seeds[random.below(seeds.size())];
      text = text.substr(0, at) + other.substr(random.below(other.size()));
      break;
    }
    default:
      text.resize(at);
  }
  if (text.size() > kMaxSize) text.resize(kMaxSize);
}

// What the handlers below need of the input that runs.
std::string* running = nullptr;
std::string artifact_prefix;

void keep_input() {
  if (running == nullptr) return;
  const std::string path =
      artifact_prefix + "crash-" + std::to_string(splitmix64(std::hash<std::string>()(*running)));
  if (std::FILE* file = std::fopen(path.c_str(), "wb")) {
    std::fwrite(running->data(), 1, running->size(), file);
    std::fclose(file);
  }
  std::fprintf(stderr, "the input is kept as %s\n", path.c_str());
  running = nullptr;
}

void on_alarm(int) {
  std::fputs("FINDING: an input takes longer than -timeout\n", stderr);
  keep_input();
  _exit(1);
}

void run_one(std::string& input, const Flags& flags) {
  running = &input;
  alarm(flags.timeout);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  alarm(0);
  running = nullptr;
}

int run_all(const Flags& flags) {
  std::vector<std::string> seeds;
  for (const auto& entry : fs::directory_iterator(flags.path)) seeds.push_back(read_text(entry.path()));
  std::sort(seeds.begin(), seeds.end());
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  double num_runs = 0;
  for (std::string& seed : seeds) run_one(seed, flags), ++num_runs;
  if (seeds.empty()) seeds.emplace_back();
  Random random(flags.seed << 32);
  while ((flags.runs == 0 || num_runs < flags.runs) &&
         (flags.max_total_time == 0 || seconds() < flags.max_total_time)) {
    std::string input = seeds[random.below(seeds.size())];
    for (std::size_t left = 1 + random.below(5); left > 0; --left) mutate_once(input, seeds, random);
    run_one(input, flags);
    ++num_runs;
  }
  std::printf("Done %.0f runs in %.0f second(s)\n", num_runs, seconds());
  return 0;
}

}  // namespace
}  // namespace hetermoe::fuzz

int main(int argc, char** argv) {
  using namespace hetermoe::fuzz;
  LLVMFuzzerInitialize(&argc, &argv);
  const Flags flags = read_flags(argc, argv);
  artifact_prefix = flags.artifact_prefix;
  signal(SIGALRM, on_alarm);
  __sanitizer_set_death_callback(keep_input);
  if (fs::is_directory(flags.path)) return run_all(flags);
  std::string input = hetermoe::read_text(flags.path);
  run_one(input, flags);
  return 0;
}
