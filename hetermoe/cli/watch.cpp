#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "hetermoe/base/error.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/live_server.h"

namespace hetermoe {
namespace {

struct WatchArguments {
  std::string output;
  i64 port = 8765;
  bool json = false;
};

int watch(const WatchArguments& options) {
  if (!std::filesystem::is_directory(options.output))
    fail<ConfigError>(
        options.output,
        "is no folder: expected the output folder of a run (train --output). A run makes it when "
        "it begins");
  LiveRun run(options.output);
  serve_live(run, static_cast<int>(options.port), [&](int port) {
    const std::string address = fmt::format("http://127.0.0.1:{}", port);
    if (options.json)
      print_json({{"address", address}});
    else
      std::cout << fmt::format("{} shows {} as it grows; Ctrl-C ends\n", address, options.output);
    std::cout.flush();
  });
  return 0;
}

}  // namespace

std::function<int()> make_watch(Flags& flags) {
  const auto options = std::make_shared<WatchArguments>();
  flags.add_option("output", options->output, "the output folder of a run")->required();
  flags.add_option("--port", options->port, "of 127.0.0.1 to serve on, 0 = any that is free")
      ->capture_default_str()
      ->range(between(0, 65535));
  flags.add_flag("--json", options->json, "print the address as JSON");
  return [options] { return watch(*options); };
}

}  // namespace hetermoe
