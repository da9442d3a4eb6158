#include <c10/core/GradMode.h>

#include <thread>

#include "hetermoe/comm/transport.h"
#include "hetermoe/nn/rows.h"
#include "hetermoe/profile/tasks.h"

namespace hetermoe {
namespace {

/// Sends rows to a thread that stands for another device, which joins them with its own (none) as an expert
/// owner does, and answers with nothing.
class Echo {
 public:
  explicit Echo(const at::Device& device)
      : transport_(make_in_process_transport(2)), device_(device), thread_([this] { answer(); }) {}
  ~Echo() {
    transport_->abort("the profiler is done");
    thread_.join();
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  void send(const at::Tensor& source, const at::Tensor& index) {
    std::vector<Message> out(2);
    out[1].tensors = {gather_rows(source, index)};
    exchange(0, 2 * step_, std::move(out));
    exchange(0, 2 * step_ + 1, std::vector<Message>(2));
    ++step_;
  }

 private:
  std::vector<Message> exchange(DeviceId self, i64 step, std::vector<Message> out) {
    static constexpr DeviceId kBoth[] = {0, 1};
    return transport_->exchange({step, 0, "profiled transfer", self, kBoth}, std::move(out));
  }
  void answer() {
    const c10::NoGradGuard no_grad;
    try {
      for (i64 step = 0;; ++step) {
        const std::vector<Message> in = exchange(1, 2 * step, std::vector<Message>(2));
        const at::Tensor rows = in[0].tensors.at(0);
        const at::Tensor joined = at::cat({rows.narrow(0, 0, 0), rows});
        synchronize(device_);
        exchange(1, 2 * step + 1, std::vector<Message>(2));
      }
    } catch (const TransportError&) {
      // The destructor ends the conversation.
    } catch (const std::exception& error) {
      transport_->abort(error.what());
    }
  }

  std::unique_ptr<Transport> transport_;
  at::Device device_;
  i64 step_ = 0;
  std::thread thread_;
};

}  // namespace

TaskGroup row_tasks(const ModelConfig& model, i64 rows, const at::TensorOptions& options) {
  struct Data {
    at::Tensor source, added, index, out;
  };
  const auto data = std::make_shared<Data>();
  const auto values = [&] {
    return at::randn({rows, model.hidden}, options.dtype(at::kFloat)).to(options.dtype().toScalarType());
  };
  data->source = values();
  data->added = values();
  data->index = at::arange(rows, at::kLong);
  ProfileEntry entry;
  entry.rows = rows;
  entry.bytes = static_cast<double>(data->source.nbytes());
  const auto clear = [data] { data->out.reset(); };
  const std::shared_ptr<Echo> echo = std::make_shared<Echo>(options.device());
  TaskGroup tasks;
  const auto add = [&](ProfiledOp op, std::function<void()> run) {
    entry.op = op;
    tasks.push_back({entry, {std::move(run), {}, clear}});
  };
  add(ProfiledOp::kGather, [data] { data->out = gather_rows(data->source, data->index); });
  add(ProfiledOp::kMerge, [data] {
    data->out = data->source.clone();
    add_rows_(data->out, data->index, data->added);
  });
  add(ProfiledOp::kTransfer, [data, echo] { echo->send(data->source, data->index); });
  return tasks;
}

}  // namespace hetermoe
