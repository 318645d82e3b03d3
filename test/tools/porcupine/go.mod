// What the histories of registers are checked with; it is no part of the programs.
module github.com/edgebus/edgebus/test/tools/porcupine

go 1.26.0

require github.com/anishathalye/porcupine v1.0.3
