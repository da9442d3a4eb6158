#include "hetermoe/cost/curve.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

/// The straight line in logarithms through (x0, y0) and (x1, y1), at x.
double log_line(double x0, double y0, double x1, double y1, double x) {
  return y0 * std::pow(y1 / y0, std::log(x / x0) / std::log(x1 / x0));
}

}  // namespace

void Curve::add(double size, Seconds seconds) {
  HM_CHECK(size > 0 && seconds > 0, "a measured point at size {} with {} s", size, seconds);
  const auto place = std::lower_bound(points_.begin(), points_.end(), size,
                                      [](const Point& point, double s) { return point.size < s; });
  HM_CHECK(place == points_.end() || place->size != size, "size {} was measured twice", size);
  points_.insert(place, {size, seconds});
}

CurveValue Curve::at(double size) const {
  HM_CHECK(!points_.empty() && size > 0, "a curve of {} points at size {}", points_.size(), size);
  const auto above = std::lower_bound(points_.begin(), points_.end(), size,
                                      [](const Point& point, double s) { return point.size < s; });
  if (above != points_.end() && above->size == size) return {above->seconds, false};
  if (above != points_.begin() && above != points_.end()) {
    const Point& below = *(above - 1);
    return {log_line(below.size, below.seconds, above->size, above->seconds, size), false};
  }
  const bool beyond = above == points_.end();
  const Point& end = beyond ? points_.back() : points_.front();
  if (points_.size() == 1) return {end.seconds * size / end.size, true};
  const Point& next = beyond ? *(points_.end() - 2) : points_[1];
  const double slope = std::max(0.0, (end.seconds - next.seconds) / (end.size - next.size));
  const Seconds line = end.seconds + slope * (size - end.size);
  // Towards zero a steep line could pass below it; proportional cost cannot.
  return {beyond ? line : std::max(line, end.seconds * size / end.size), true};
}

Curve& Surface::curve(double value) {
  HM_CHECK(value > 0, "a family of curves at {}", value);
  const auto place = std::lower_bound(families_.begin(), families_.end(), value,
                                      [](const Family& family, double v) { return family.value < v; });
  if (place != families_.end() && place->value == value) return place->curve;
  return families_.insert(place, {value, {}})->curve;
}

CurveValue Surface::at(double value, double size) const {
  HM_CHECK(!families_.empty() && value > 0, "a surface of {} curves at {}", families_.size(), value);
  const auto above = std::lower_bound(families_.begin(), families_.end(), value,
                                      [](const Family& family, double v) { return family.value < v; });
  if (above != families_.end() && above->value == value) return above->curve.at(size);
  if (above != families_.begin() && above != families_.end()) {
    const Family& below = *(above - 1);
    const CurveValue low = below.curve.at(size), high = above->curve.at(size);
    return {log_line(below.value, low.seconds, above->value, high.seconds, value),
            low.extrapolated || high.extrapolated};
  }
  const bool beyond = above == families_.end();
  const Family& end = beyond ? families_.back() : families_.front();
  const Seconds at_end = end.curve.at(size).seconds;
  double exponent = 1;
  if (families_.size() > 1) {
    const Family& next = beyond ? *(families_.end() - 2) : families_[1];
    exponent = std::log(at_end / next.curve.at(size).seconds) / std::log(end.value / next.value);
  }
  return {at_end * std::pow(value / end.value, std::clamp(exponent, 1.0, 2.0)), true};
}

}  // namespace hetermoe
