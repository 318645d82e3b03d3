package dialect

// words say what fields are that only other groups' forms have, for kubectl explain. What the canonical form has
// as well, under the same name, is described there.
var words = map[string]string{
	// devices.kubeedge.io
	"actual":             "What the device reported. What a manifest says here is shown until something is known.",
	"bluetooth":          "Configuration for Bluetooth.",
	"characteristicUUID": "The characteristic of Bluetooth.",
	"com":                "A serial line.",
	"common":             "Configuration of the line, whatever the protocol.",
	"config":             "Values by name; what they mean is the protocol's.",
	"configData":         "Values by name; what they mean is the protocol's.",
	"customizedProtocol": "A protocol that has no section of its own.",
	"expected":           "What is wanted: a wish, like the canonical spec.desired.",
	"id":                 "The node's name.",
	"key":                "The label's key. Whatever it is, the first value is the node's name.",
	"lastOnlineTime":     "When the device was seen last.",
	"matchExpressions":   "The first of them names the node.",
	"metadata":           "What else is known of it, such as a timestamp.",
	"modbus":             "Configuration for Modbus.",
	"node":               "The node that the device is bound to; nodeName says the same.",
	"nodeSelector":       "Binds the device to the node that the first value of its first expression names.",
	"nodeSelectorTerms":  "The first of them names the node.",
	"observedDesired":    "The wish that was in force.",
	"opcua":              "Configuration for OPC UA.",
	"operator":           "In.",
	"properties":         "What is wanted of each property and how to reach it, or what a model has.",
	"protocol":           "How to reach the device.",
	"protocolConfigData": "Configuration of the protocol that devices of the model have, where they don't say otherwise.",
	"protocolName":       "The protocol that a mapper speaks.",
	"tcp":                "A network address.",
	"twins":              "What is wanted and what is known of each property.",
	"type":               "The type.",
	"value":              "The value, as text.",
	"values":             "The first is the node's name.",
	"visitors":           "How to reach the property, or each of them.",

	// flightctl.io
	"mountPath":  "Where the Secret's values go on the node.",
	"namespace":  "The Secret's namespace.",
	"path":       "The directory in the repository.",
	"ref":        "The branch, tag or commit.",
	"repository": "The Repository's name.",
	"template":   "What each node of the fleet is to be.",
}
