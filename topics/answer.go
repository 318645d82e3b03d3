package topics

// A command's answer says by two user properties how it went: a word for programs,
// and for people, unless it went well, a sentence.
const (
	PropCode  = "code"
	PropError = "error"
)

// Code is how a command ended. A mapper may have words of its own besides these.
type Code string

// The codes, and what each says of whether the command was executed.
const (
	OK            Code = "OK"            // it was
	Refused       Code = "Refused"       // it was not: no such device or command, or one that can't be
	Busy          Code = "Busy"          // it was not: too many are under way
	NodeOffline   Code = "NodeOffline"   // it was not: the node isn't connected
	MapperOffline Code = "MapperOffline" // it was not: on the node nobody listens for the device's commands
	DeviceOffline Code = "DeviceOffline" // it was not: the mapper can't reach the device
	Failed        Code = "Failed"        // it was begun
	Lost          Code = "Lost"          // unknown: the connection that it was under way on has ended
	Expired       Code = "Expired"       // unknown: no answer came in time
)

// Codes are the codes that the bus itself uses.
func Codes() []Code {
	return []Code{OK, Refused, Busy, NodeOffline, MapperOffline, DeviceOffline, Failed, Lost, Expired}
}
