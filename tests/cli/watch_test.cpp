#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/cli/program.h"

namespace hetermoe {
namespace {

/// A connection to a server on this machine, over which a text was sent; -1 = there is none.
int connection(int port, const std::string& text) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd);
    return -1;
  }
  EXPECT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  return fd;
}

/// What a server on this machine answers, head and body.
std::string answer(int port, const std::string& ask) {
  const int fd = connection(port, ask);
  std::string text;
  char part[4096];
  for (ssize_t got; fd >= 0 && (got = ::recv(fd, part, sizeof part, 0)) > 0;)
    text.append(part, static_cast<std::size_t>(got));
  if (fd >= 0) ::close(fd);
  return text;
}

std::string get(int port, const std::string& path, const std::string& host = "127.0.0.1") {
  return answer(port,
                fmt::format("GET {} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n\r\n", path, host, port));
}

/// A server that shows a folder.
struct Server {
  explicit Server(const std::string& folder)
      : child(HM_BINARY_DIR "/hetermoe", {"watch", folder, "--port", "0", "--json"}) {
    for (int tries = 0; tries < 600 && child.out().find('}') == std::string::npos; ++tries) {
      if (!is_built_in()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    address = parse_json(child.out(), "output").at("address").get<std::string>();
    port = std::stoi(address.substr(address.rfind(':') + 1));
  }
  bool is_built_in() const { return !contains(child.err(), "this build has no cpp-httplib"); }
  Child child;
  std::string address;
  int port = 0;
};

TEST(Watch, ServesTheRunUntilInterrupted) {
  const WorkFolder folder;
  std::ofstream(folder / "metrics.jsonl") << "{\"step\": 7, \"loss\": 1.25}\n";
  Server server(folder.path());
  if (!server.is_built_in()) GTEST_SKIP() << server.child.err();
  const int port = server.port;
  EXPECT_TRUE(contains(get(port, "/"), "fetch('/parts?seen='"));
  EXPECT_TRUE(contains(get(port, "/"), "<dd>7</dd>"));
  EXPECT_TRUE(contains(get(port, "/parts?seen=0"), "\\u003cdd>7\\u003c/dd>"));
  EXPECT_TRUE(contains(get(port, "/report.html"), " 404 "));
  EXPECT_TRUE(contains(get(port, "/../metrics.jsonl"), " 404 "));
  EXPECT_TRUE(contains(get(port, "/parts", "elsewhere.example"), " 403 "));
  const ProgramResult taken = run_hetermoe({"watch", folder.path(), "--port", std::to_string(port)});
  EXPECT_EQ(taken.code, 1);
  EXPECT_TRUE(contains(taken.err, "cannot listen on 127.0.0.1")) << taken.err;
  server.child.signal(SIGINT);
  EXPECT_EQ(server.child.wait().code, 0);
}

TEST(Watch, NoBodyIsReadAndHalfRequestsHoldNobodyUp) {
  const WorkFolder folder;
  std::ofstream(folder / "metrics.jsonl") << "{\"step\": 7, \"loss\": 1.25}\n";
  Server server(folder.path());
  if (!server.is_built_in()) GTEST_SKIP() << server.child.err();
  const int port = server.port;
  // The answer comes although the body never does, and after it the connection ends.
  for (const char* body : {"Content-Length: 314572800", "Transfer-Encoding: chunked", "Origin: http://a.b"})
    EXPECT_TRUE(
        contains(answer(port, fmt::format("POST / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{}\r\n\r\n", port, body)),
                 " 405 "))
        << body;
  std::vector<int> open;
  for (int i = 0; i < 200; ++i) open.push_back(connection(port, "GET / HT"));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(contains(get(port, "/"), "<dd>7</dd>"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  for (const int fd : open) ::close(fd);
  server.child.signal(SIGTERM);
  EXPECT_EQ(server.child.wait().code, 0);
}

/// Where the browser is; empty = this machine has none.
std::string browser() {
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"}) {
    if (std::filesystem::exists(path)) return path;
  }
  return "";
}

/// The page as it stands after its script has run for a while.
std::string shown(const std::string& address) {
  const WorkFolder profile;
  return Child("/usr/bin/timeout", {"300", browser(), "--headless", "--no-sandbox", "--disable-gpu",
                                    "--user-data-dir=" + profile.path().string(),
                                    "--virtual-time-budget=5000", "--dump-dom", address})
      .wait()
      .out;
}

// Claim: the live page shows a run that goes on, in a browser (skipped without Chromium)
TEST(Watch, ABrowserShowsARunThatGoesOn) {
  if (browser().empty()) GTEST_SKIP() << "this machine has no Chromium";
  const WorkFolder folder;
  Child run(HM_BINARY_DIR "/hetermoe",
            train_words(folder, {"--train.steps", "100000", "--clock.kind", "virtual"}));
  for (int tries = 0; tries < 600 && !std::filesystem::exists(folder / "run/experts.json"); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Server server(folder / "run");
  if (!server.is_built_in()) GTEST_SKIP() << server.child.err();
  const std::string page = shown(server.address);
  for (const char* part :
       {" of 100000</dd>", "<h2>The plan</h2>", "one step predicted to take", ", measured ",
        "waiting for transfers", "<h2>Memory of each device</h2>",
        "<title>layer 0 expert 0:", "Loss (nats per byte)", "Share of the step in which compute lanes wait",
        "Model FLOPs utilisation", "<canvas id=\"canvas\""})
    EXPECT_TRUE(contains(page, part)) << part;
  EXPECT_FALSE(contains(page, "<title>hetermoe: nobody serves"));
  EXPECT_FALSE(contains(page, "/report.html"));
  run.signal(SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  const std::string after = shown(server.address);
  EXPECT_TRUE(contains(after, " of 100000, interrupted</dd>"));
  EXPECT_TRUE(contains(after, "href=\"/report.html\""));
  const ProgramResult again = run_hetermoe({"report", folder / "run", "-o", folder / "again.html"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read_text(folder / "again.html"), read_text(folder / "run/report.html"));
}

TEST(ReportCommand, ThePageOfAFolderGoesThereAndReplacesNothingOfTheUsers) {
  const WorkFolder folder;
  ASSERT_EQ(run_hetermoe({"simulate", "--model", "tiny", "--output", folder / "a"}).code, 0);
  const std::string page = folder / "a/report.html";
  for (const char* time : {"first", "again"}) {
    const ProgramResult result = run_hetermoe({"report", folder / "a"});
    EXPECT_EQ(result.code, 0) << time << result.err;
    EXPECT_TRUE(contains(result.out, "wrote " + page)) << result.out;
    EXPECT_TRUE(contains(read_text(page), "</html>"));
  }
  write_text(page, "my own");
  const ProgramResult refused = run_hetermoe({"report", folder / "a"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.err, "report.html] is there, and this version of hetermoe did not write it"))
      << refused.err;
  EXPECT_EQ(read_text(page), "my own");
  const ProgramResult of_file = run_hetermoe({"report", folder / "a/timeline.json"});
  EXPECT_EQ(of_file.code, 2);
  EXPECT_EQ(of_file.err,
            "[-o] is missing: name the page to write. Only a run's folder has a page of its own\n");
}

TEST(Report, AFolderWithoutARunIsRefused) {
  const WorkFolder folder;
  const ProgramResult result = run_hetermoe({"report", folder.path(), "-o", folder / "page.html"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err,
                       "] has no run: expected summary.json or metrics.jsonl, as `train` and `simulate "
                       "--output` leave them"))
      << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "page.html"));
}

TEST(Report, AFolderInThePlaceOfAFileIsNamed) {
  for (const std::string name : {"summary.json", "experts.json"}) {
    const WorkFolder folder;
    std::ofstream(folder / "metrics.jsonl") << "{\"step\": 7, \"loss\": 1.25}\n";
    std::filesystem::create_directory(folder / name);
    const ProgramResult result = run_hetermoe({"report", folder.path(), "-o", folder / "page.html"});
    EXPECT_NE(result.code, 0);
    EXPECT_EQ(result.err, "[" + folder / name + "] is a folder, expected a file\n");
  }
}

TEST(Report, ATimelineWithoutItsOtherSideIsNamed) {
  const WorkFolder folder;
  for (const std::string model : {"tiny", "tiny-qwen3"}) {
    const ProgramResult made = run_hetermoe({"simulate", "--model", model, "--cluster", "demo", "--strategy",
                                             "ep", "--train.seq_len", "32", "--output", folder / model});
    ASSERT_EQ(made.code, 0) << made.err;
  }
  const ProgramResult result =
      run_hetermoe({"report", folder / "tiny/timeline.json", "--with", folder / "tiny-qwen3/timeline.json",
                    "-o", folder / "page.html"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.err, "is drawn by itself: no other file is the run of the same schedule"))
      << result.err;
}

TEST(Watch, WrongFoldersAreNamed) {
  const ProgramResult result = run_hetermoe({"watch", "/nowhere/at/all"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "[/nowhere/at/all] is no folder: expected the output folder of a run"))
      << result.err;
}

}  // namespace
}  // namespace hetermoe
