#!/bin/sh
# A whole mapper. Usage: lamp.sh NODE DEVICE [PORT]; needs mosquitto-clients 2.
me=shell-$2 tree=v1/nodes/$1 port=${3:-2883} pipe=$(mktemp -u) sub='' over=''
say() { mosquitto_pub -p "$port" -i "$me-says" -V 5 -q 1 -t "$tree/$1" -m "$2" -D publish user-property for "${3:-0}"; }
number() { echo " $properties " | sed -n "s/.* $1:\([0-9]*\) .*/\1/p"; }
note() { applied="$(echo "$applied" | sed "s/ $property:[0-9]* / /")$property:$1 "; }
# mosquitto_sub may hang when it is asked to end: it is killed, and the broker publishes its will. The last command ends a loop whose pipe nobody writes to.
trap 'over=yes; kill -9 $sub; : <>"$pipe"' TERM INT
mkfifo -m 600 "$pipe"
until [ "$over" ]; do # mosquitto_sub ends when the broker says that it is going
  say "mappers/$me/state" online && say "devices/$2/state" online && {
    applied=' '
    while IFS='|' read -r topic properties value; do
      property=${topic##*/} version=$(number ver)
      case $topic in */reported/*) note "$(number for)"; continue ;; esac # what was applied before we were (re)started
      case "$applied" in *" $property:$version "*) continue ;; esac
      [ -n "$value" ] || continue                  # nothing is wanted any more
      echo "$property becomes $value" >&2          # here the device is driven …
      say "devices/$2/reported/$property" "$value" "$version" && note "$version" # … and here is what it answered
    done <"$pipe" &
    mosquitto_sub -p "$port" -i "$me" -V 5 -q 1 -t "$tree/devices/$2/reported/+" -t "$tree/devices/$2/desired/+" -F '%t|%P|%p' \
      --will-topic "$tree/mappers/$me/state" --will-payload offline --will-qos 1 --will-retain >"$pipe" & sub=$!
    [ -z "$over" ] || kill -9 "$sub" # it came before there was one
    wait; wait # for the signal, and for the loop to end
    sub=''
  }
  [ "$over" ] || sleep 1
done
trap '' TERM INT
rm "$pipe"; say "devices/$2/state" offline; say "mappers/$me/state" offline
