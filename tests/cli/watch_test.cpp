#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/cli/program.h"

namespace hetermoe {
namespace {

/// What a server on this machine answers, head and body.
std::string get(int port, const std::string& path, const std::string& host = "127.0.0.1") {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    const std::string ask =
        fmt::format("GET {} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n\r\n", path, host, port);
    EXPECT_EQ(::send(fd, ask.data(), ask.size(), 0), static_cast<ssize_t>(ask.size()));
    char part[4096];
    for (ssize_t got; (got = ::recv(fd, part, sizeof part, 0)) > 0;)
      answer.append(part, static_cast<std::size_t>(got));
  }
  ::close(fd);
  return answer;
}

TEST(Watch, ServesTheRunUntilInterrupted) {
  const WorkFolder folder;
  std::ofstream(folder / "metrics.jsonl") << "{\"step\": 7, \"loss\": 1.25}\n";
  Child child(HM_BINARY_DIR "/hetermoe", {"watch", folder.path(), "--port", "0", "--json"});
  for (int tries = 0; tries < 600 && child.out().find('}') == std::string::npos; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (contains(child.err(), "this build has no cpp-httplib")) GTEST_SKIP() << child.err();
  ASSERT_TRUE(contains(child.out(), "}")) << child.err();
  const auto address = parse_json(child.out(), "output").at("address").get<std::string>();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  EXPECT_TRUE(contains(get(port, "/"), "fetch('/body')"));
  EXPECT_TRUE(contains(get(port, "/body"), "<td>7</td>"));
  EXPECT_TRUE(contains(get(port, "/report.html"), " 404 "));
  EXPECT_TRUE(contains(get(port, "/../metrics.jsonl"), " 404 "));
  EXPECT_TRUE(contains(get(port, "/body", "elsewhere.example"), " 403 "));
  const ProgramResult taken = run_hetermoe({"watch", folder.path(), "--port", std::to_string(port)});
  EXPECT_EQ(taken.code, 1);
  EXPECT_TRUE(contains(taken.err, "cannot listen on 127.0.0.1")) << taken.err;
  child.signal(SIGINT);
  EXPECT_EQ(child.wait().code, 0);
}

TEST(Watch, WrongFoldersAreNamed) {
  const ProgramResult result = run_hetermoe({"watch", "/nowhere/at/all"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "[/nowhere/at/all] is no folder: expected the output folder of a run"))
      << result.err;
}

}  // namespace
}  // namespace hetermoe
