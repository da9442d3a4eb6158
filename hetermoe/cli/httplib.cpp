#include <httplib.h>
#include <signal.h>

#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/cli/live_server.h"

namespace hetermoe {
namespace {

/// A page of another site whose name was made to lead here has that name.
bool is_local(const httplib::Request& request) {
  const std::string host = request.get_header_value("Host");
  const std::string name = host.substr(0, host.find(':'));
  return name == "127.0.0.1" || name == "localhost";
}

}  // namespace

void serve_live(LiveRun& run, int port, const std::function<void(int)>& began) {
  httplib::Server server;
  // By default two servers may share a port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  // A connection that sends half a request keeps a thread until the timeout.
  constexpr std::size_t kThreads = 128;
  constexpr time_t kMostWait = 2;  // seconds
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_read_timeout(kMostWait);
  server.set_write_timeout(kMostWait);
  server.set_keep_alive_timeout(kMostWait);
  // No page takes a body: it is not read, so nothing else can be read from the connection after it.
  server.set_keep_alive_max_count(1);
  server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    const bool reads = request.method == "GET" || request.method == "HEAD";
    if (reads && is_local(request)) return httplib::Server::HandlerResponse::Unhandled;
    response.status = reads ? 403 : 405;
    return httplib::Server::HandlerResponse::Handled;
  });
  const auto page = [&server](const char* path, const char* type,
                              std::function<std::string(const httplib::Request&)> make) {
    server.Get(path, [type, make](const httplib::Request& request, httplib::Response& response) {
      const std::string text = make(request);
      if (text.empty()) response.status = 404;
      response.set_header("Cache-Control", "no-store");
      response.set_content(text, type);
    });
  };
  constexpr const char* kHtml = "text/html; charset=utf-8";
  page("/", kHtml, [&run](const httplib::Request&) { return run.page(); });
  page("/parts", "application/json", [&run](const httplib::Request& request) {
    return run.parts(std::atoll(request.get_param_value("seen").c_str()));
  });
  page("/report.html", kHtml, [&run](const httplib::Request&) { return run.report(); });

  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // threads of the server have it, too
  const int bound = port == 0                                ? server.bind_to_any_port("127.0.0.1")
                    : server.bind_to_port("127.0.0.1", port) ? port
                                                             : -1;
  if (bound < 0)
    fail<DeviceError>("--port", "cannot listen on 127.0.0.1:{}: is it in use? 0 takes any free port", port);
  std::thread thread([&server] { server.listen_after_bind(); });
  began(bound);
  int signal = 0;
  sigwait(&ends, &signal);
  server.stop();
  thread.join();
}

}  // namespace hetermoe
