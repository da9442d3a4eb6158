#include "hetermoe/comm/parcel.h"

#include "fuzz/messages.h"
#include "fuzz/target.h"

// What comes from another GPU: a header, and the parts that it announces.
namespace hetermoe::fuzz {
namespace {

const ExchangeCall kCall{.step = kStamp.step, .op = kStamp.op, .name = "fuzz", .participants = {}};
const c10::Device kCpu(at::kCPU);
constexpr std::size_t kHeaderBytes = kParcelHeader * sizeof(i64);
constexpr i64 kMostAnnounced =
    1 << 20;  ///< larger parts are not made here, because the input has no bytes for them

/// The next bytes of the input; zeros where it has ended.
void fill(const at::Tensor& tensor, std::string_view& input) {
  tensor.zero_();
  const std::size_t size = std::min(tensor.nbytes(), input.size());
  if (size > 0) std::memcpy(tensor.mutable_data_ptr(), input.data(), size);
  input.remove_prefix(size);
}

void run(const std::string& input) {
  if (input.size() < kHeaderBytes) return;
  Parcel parcel;
  std::memcpy(parcel.header.data(), input.data(), kHeaderBytes);
  for (std::size_t i = 2; i < kParcelHeader; ++i) {
    if (parcel.header[i] > kMostAnnounced && parcel.header[i] <= i64{1} << 40) return;
  }
  make_room(kCall, parcel, kCpu, "peer");
  std::string_view rest = std::string_view(input).substr(kHeaderBytes);
  std::vector<char> bytes(rest.begin(),
                          rest.begin() + std::min<std::ptrdiff_t>(parcel.header[2], std::ssize(rest)));
  bytes.resize(static_cast<std::size_t>(parcel.header[2]));
  rest.remove_prefix(std::min(bytes.size(), rest.size()));
  seal(bytes);
  if (!bytes.empty()) std::memcpy(parcel.rest.mutable_data_ptr(), bytes.data(), bytes.size());
  for (const at::Tensor& tensor : parcel.tensors) fill(tensor, rest);
  const Message message = message_of(kCall, parcel, "peer");
  const Parcel again = make_parcel(kCall, message, kCpu);
  if (again.header[3] != parcel.header[3] || again.tensors.size() != parcel.tensors.size())
    throw std::logic_error("a parcel that was read is packed as another");
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const Message& message : seed_messages()) {
    const Parcel parcel = make_parcel(kCall, message, kCpu);
    std::string text(reinterpret_cast<const char*>(parcel.header.data()), kHeaderBytes);
    const auto append = [&](const at::Tensor& tensor) {
      text.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    };
    append(parcel.rest);
    for (const at::Tensor& tensor : parcel.tensors) append(tensor);
    texts.push_back(text);
  }
  return texts;
}

}  // namespace

extern const Target kParcel{"parcel", run, seeds};

}  // namespace hetermoe::fuzz
