// Package mappers is what every mapper has in common: finding its devices on the node's broker, collecting and
// reporting their values, driving them to what is wanted, presence, retries. A driver adds the protocol and nothing
// else: it implements Driver, and its main calls Run.
//
// What Run promises about a wanted value:
//   - A device is driven at most once for a version of a wanted value, and at most once more for each restart of the
//     mapper and each new configuration of the device; never with an older value after a newer one. A device that was
//     away and has lost the value meanwhile, as after a power cut, gets it again as the property's atBoot says, or a
//     refusal. One that was configured anew is compared with what is wanted, and driven if it differs.
//   - What can be read is compared before it is written again, and read back after it was written.
//   - A value that can't be applied is refused in public, on refused/{property}. One that could not be applied because
//     the device was away is tried again for as long as it is wanted.
//
// A mapper is a plain MQTT client of the node's broker. It keeps nothing on disk: what it has applied it learns from
// its own retained reports. It never talks to the cloud, and nothing in it grows with time: each topic has one latest
// value, each bus one goroutine.
package mappers
