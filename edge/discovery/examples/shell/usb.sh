#!/bin/sh
# A discovery handler in ten lines: the files of a directory are devices. Usage: usb.sh SOCKET NODE CONFIGURATION DIRECTORY
# Its user has the role discoverer at the core's socket (auth.users of core.yaml). A new file is found within a second.
at=v1/nodes/$2/discovery/$3
pub() { mosquitto_pub --unix "$1" -V 5 -q 1 -r -t "$at/$2" "$3" "$4" 2>/dev/null; }
while pub "$1" handler -m '{"state":"Accepted"}' || sleep 1; do
  for file in "$4"/*; do
    [ -e "$file" ] && pub "$1" "instances/$(basename "$file")" -m "{\"properties\":{\"FILE\":\"$file\"}}"
  done
  for gone in $(mosquitto_sub --unix "$1" -V 5 -t "$at/instances/+" -W 1 -F %t); do
    [ -e "$4/${gone##*/}" ] || mosquitto_pub --unix "$1" -V 5 -q 1 -r -n -t "$gone"
  done
done
