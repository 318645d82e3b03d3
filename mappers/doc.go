// Package mappers is the SDK for mappers: it finds a mapper's devices on the node's broker, reads and reports their values,
// writes desired values to them, announces the mapper's presence and retries. A driver adds the protocol: it implements
// Driver, and its main calls Run. Begin with driver.go.
//
// It never talks to the cloud and stores nothing on disk: a mapper is an MQTT client of the node's broker, and learns from its
// own retained reports which values it has applied. Its memory doesn't grow with time: it keeps the latest value of each
// topic, and has one goroutine for each bus.
//
// Run promises of a desired value:
//   - It is written at most once for each version, and at most once more for each restart of the mapper and each new
//     configuration of the device; never an older value after a newer one. A device that has lost the value while it was
//     away, for example after a power failure, gets it again or the value is refused, as the property's atBoot says. After
//     a new configuration the device is read, and written if its value differs.
//   - A property that can be read is compared before a value is written again, and read back after it was written.
//   - A value that can't be applied is refused on the topic refused/{property}. If it could not be applied because the
//     device was away, it is tried again for as long as it is desired.
package mappers
