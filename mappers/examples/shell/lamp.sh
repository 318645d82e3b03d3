#!/bin/sh
# A whole mapper. Usage: lamp.sh NODE DEVICE [PORT]; needs mosquitto-clients 2.
me=shell-$2 tree=v1/nodes/$1 port=${3:-2883}
say() { mosquitto_pub -p "$port" -i "$me-says" -V 5 -q 1 -t "$tree/$1" -m "$2" -D publish user-property for "${3:-0}"; }
say "mappers/$me/state" online && say "devices/$2/state" online
mosquitto_sub -p "$port" -i "$me" -V 5 -q 1 -t "$tree/devices/$2/desired/+" -F '%t|%P|%p' \
  --will-topic "$tree/mappers/$me/state" --will-payload offline --will-qos 1 --will-retain |
  while IFS='|' read -r topic properties value; do
    property=${topic##*/} version=$(echo " $properties " | sed -n 's/.* ver:\([0-9]*\) .*/\1/p')
    [ -n "$value" ] || continue                    # nothing is wanted any more
    echo "$property becomes $value" >&2            # here the device is driven …
    say "devices/$2/reported/$property" "$value" "$version" # … and here is what it answered
  done
