#include "hetermoe/report/progress.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

/// Collects what a Progress prints; its clock stands still unless told otherwise.
struct Output {
  std::FILE* file = std::tmpfile();
  Seconds time = 0;
  ~Output() { std::fclose(file); }
  ProgressOptions options(ProgressStyle style) {
    ProgressOptions options;
    options.style = style;
    options.out = file;
    options.bar_width = 10;
    options.clock = [this] { return time; };
    return options;
  }
  std::string text() {
    std::rewind(file);
    std::string all;
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) all += static_cast<char>(c);
    return all;
  }
};

TEST(Progress, AFileGetsPlainLinesNowAndThenAndTheLast) {
  Output out;
  Progress progress("training", 4, out.options(ProgressStyle::kAuto));
  for (int step = 1; step <= 4; ++step) {
    out.time = step == 3 ? 8 : step == 4 ? 9 : step;
    progress.update(step, "loss " + std::to_string(step));
  }
  progress.finish();
  progress.finish();
  EXPECT_EQ(out.text(),
            "training 1/4  loss 1\n"
            "training 2/4  loss 2  2.00 s left\n"
            "training 3/4  loss 3  3.50 s left\n"
            "training 4/4  loss 4  in 9.00 s\n");
}

TEST(Progress, SaysWhoseTimeIsLeft) {
  Output out;
  ProgressOptions options = out.options(ProgressStyle::kLines);
  options.whose_time = " of this machine's time";
  Progress progress("training", 4, options);
  out.time = 1;
  progress.update(1);
  out.time = 11;
  progress.update(2);
  EXPECT_EQ(out.text(), "training 1/4\ntraining 2/4  20.0 s of this machine's time left\n");
}

TEST(Progress, ABarIsRedrawnInPlace) {
  Output out;
  Progress progress("plan", 4, out.options(ProgressStyle::kBar));
  out.time = 1;
  progress.update(1);
  out.time = 2;
  progress.update(2);
  progress.update(3);  // too soon to redraw
  out.time = 3;
  progress.update(4);
  progress.finish();
  EXPECT_EQ(out.text(),
            "\rplan [##........] 1/4\33[K"
            "\rplan [#####.....] 2/4  2.00 s left\33[K"
            "\rplan [##########] 4/4\33[K"
            "\rplan [##########] 4/4  in 3.00 s\33[K\n");
}

TEST(Progress, WhatWasNotBegunIsNotShown) {
  for (const ProgressStyle style : {ProgressStyle::kLines, ProgressStyle::kBar}) {
    Output out;
    Progress progress("comparing", 609, out.options(style));
    progress.finish();
    EXPECT_EQ(out.text(), "");
  }
}

TEST(Progress, AnUnfinishedBarEndsItsLine) {
  Output out;
  {
    Progress progress("p", 2, out.options(ProgressStyle::kBar));
    progress.update(1);
  }
  EXPECT_EQ(out.text().back(), '\n');
}

TEST(Progress, UnknownTotalShowsTheCountAndNoneShowsNothing) {
  Output out;
  Progress progress("read", 0, out.options(ProgressStyle::kLines));
  progress.update(7);
  EXPECT_EQ(out.text(), "read 7\n");
  Output silent;
  Progress none("read", 3, silent.options(ProgressStyle::kNone));
  none.update(1);
  none.finish();
  EXPECT_EQ(silent.text(), "");
}

}  // namespace
}  // namespace hetermoe
