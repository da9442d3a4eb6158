#!/usr/bin/env python3
"""Draws what an op costs when there are more and more of them.

build/sim_bench --benchmark_filter=scaling --benchmark_format=json | python3 bench/scaling_picture.py > scaling.svg
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 60, 110, 40, 50
PARTS = [("build_ns", "build", "#4269d0"), ("price_ns", "price", "#ff725c"), ("simulate_ns", "simulate", "#3ca951")]


def main():
    runs = sorted(json.load(sys.stdin)["benchmarks"], key=lambda run: run["ops"])
    if not runs:
        sys.exit("[scaling_picture] no benchmarks on stdin: expected the JSON of sim_bench --benchmark_filter=scaling")
    low, high = math.floor(math.log10(runs[0]["ops"])), math.ceil(math.log10(runs[-1]["ops"]))
    most = max(run[key] for run in runs for key, _, _ in PARTS)
    step = 10 ** math.floor(math.log10(most))
    top = math.ceil(most / step) * step

    def x(ops):
        return LEFT + (math.log10(ops) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(nanoseconds):
        return HEIGHT - BOTTOM - nanoseconds / top * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">Time per op of a schedule, zebra on 4 devices, one core (measured)</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">ops of the schedule</text>',
        f'<text x="14" y="{TOP - 8}">ns</text>',
    ]
    for power in range(low, high + 1):
        out.append(f'<line x1="{x(10**power)}" x2="{x(10**power)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{x(10**power)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">10^{power}</text>')
    for tick in range(0, 5):
        value = top * tick / 4
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:.0f}</text>')
    for key, name, colour in PARTS:
        points = " ".join(f"{x(run['ops']):.1f},{y(run[key]):.1f}" for run in runs)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for run in runs:
            out.append(f'<circle cx="{x(run["ops"]):.1f}" cy="{y(run[key]):.1f}" r="3" fill="{colour}"/>')
        last = runs[-1]
        out.append(f'<text x="{x(last["ops"]) + 8:.1f}" y="{y(last[key]) + 4:.1f}" fill="{colour}">{name} {last[key]:.0f}</text>')
    out.append("</svg>")
    print("\n".join(out))


main()
