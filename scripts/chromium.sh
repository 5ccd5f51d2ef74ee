#!/bin/sh
# Chromium and its driver for tests of pages: those of Debian, when root.
for name in chromium chromium-browser google-chrome; do
  command -v $name >/dev/null && command -v chromedriver >/dev/null && exit 0
done
packages="chromium chromium-driver"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "no Chromium found; installing $packages"
  # Another program may hold apt's locks, and a mirror may fail once.
  for pause_s in 10 30 60 0; do
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages >/dev/null && exit 0
    sleep $pause_s
  done
  exit 1
else
  echo "no Chromium found: tests of pages are skipped. Install: $packages"
fi
