#pragma once
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <vector>

namespace hetermoe {

/// As std::vector, for lists that hardly ever have more than one element: that one costs no allocation. Plans
/// hold such lists by the million.
template <class T>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;

  SmallVector() = default;
  SmallVector(std::initializer_list<T> elements) {
    for (const T& element : elements) push_back(element);
  }
  SmallVector(const SmallVector& other) { *this = other; }
  SmallVector& operator=(const SmallVector& other) {
    if (this == &other) return *this;
    one_ = other.one_, has_one_ = other.has_one_;
    many_ = other.many_ ? std::make_unique<std::vector<T>>(*other.many_) : nullptr;
    return *this;
  }
  SmallVector(SmallVector&&) noexcept = default;
  SmallVector& operator=(SmallVector&&) noexcept = default;
  ~SmallVector() = default;

  std::size_t size() const { return many_ ? many_->size() : has_one_ ? 1 : 0; }
  bool empty() const { return size() == 0; }
  T* begin() { return many_ ? many_->data() : &one_; }
  const T* begin() const { return many_ ? many_->data() : &one_; }
  T* end() { return begin() + size(); }
  const T* end() const { return begin() + size(); }
  T& operator[](std::size_t i) { return begin()[i]; }
  const T& operator[](std::size_t i) const { return begin()[i]; }
  T& front() { return *begin(); }
  const T& front() const { return *begin(); }
  T& back() { return *(end() - 1); }
  const T& back() const { return *(end() - 1); }

  void clear() { *this = {}; }
  void push_back(const T& element) {
    if (!many_ && !has_one_) {
      one_ = element, has_one_ = true;
      return;
    }
    if (!many_) many_ = std::make_unique<std::vector<T>>(1, one_);
    many_->push_back(element);
  }

  bool operator==(const SmallVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  T one_{};
  bool has_one_ = false;
  std::unique_ptr<std::vector<T>> many_;  ///< all elements, once there were more than one
};

}  // namespace hetermoe
