// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"reflect"
	"time"

	"github.com/edgebus/edgebus/topics/dialect/fit"
)

// Schema describes the form in OpenAPI 3: the fields that have a meaning here. Other fields are allowed.
func (k Kind) Schema() map[string]any { return formSchema(reflect.TypeOf(k.Form)) }

func formSchema(t reflect.Type) jsonObject {
	t = fit.Deref(t)
	switch {
	case t == reflect.TypeFor[time.Time]():
		return jsonObject{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[opaqueJSON]():
		return jsonObject{preserveKey: true, descriptionKey: "It is kept as it is."}
	case fit.IsKept(t):
		return jsonObject{preserveKey: true, descriptionKey: "It is kept as it is, and nothing acts on it."}
	case fit.IsOpaque(t) && t.Kind() != reflect.String:
		return jsonObject{preserveKey: true}
	}
	switch t.Kind() {
	case reflect.String:
		return jsonObject{"type": "string"}
	case reflect.Bool:
		return jsonObject{"type": "boolean"}
	case reflect.Float64:
		return jsonObject{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return jsonObject{"type": "string", "format": "byte"} // in base64
		}
		out := jsonObject{"type": "array", "items": formSchema(t.Elem())}
		if key := keyOf(t.Elem()); key != "" { // a field manager that applies an element owns the element, not the list
			out["x-kubernetes-list-type"], out["x-kubernetes-list-map-keys"] = "map", []any{key}
		}
		return out
	case reflect.Map:
		return jsonObject{"type": "object", "additionalProperties": formSchema(t.Elem())}
	case reflect.Struct:
		props := jsonObject{}
		for name, field := range fit.FieldsOf(t) {
			prop := formSchema(field)
			if text := fieldDescriptions[name]; text != "" && prop[descriptionKey] == nil {
				prop[descriptionKey] = text
			}
			props[name] = prop
		}
		return jsonObject{"type": "object", "properties": props, preserveKey: true}
	}
	return jsonObject{"type": "integer", "format": "int64"}
}

const (
	preserveKey    = "x-kubernetes-preserve-unknown-fields"
	descriptionKey = "description"
)

// keyOf is the field that tells the elements of a list apart, if all of them must have it.
func keyOf(t reflect.Type) string {
	if t = fit.Deref(t); t.Kind() != reflect.Struct {
		return ""
	}
	for _, name := range listKeys {
		for i := range t.NumField() {
			if t.Field(i).Tag.Get("json") == name {
				return name
			}
		}
	}
	return ""
}

// fieldDescriptions describe, for kubectl explain, the fields that only other groups' forms have. Fields that the canonical form
// has under the same name are described there.
var fieldDescriptions = map[string]string{
	// operations.kubeedge.io
	"action":               "What the node does, or has done.",
	"actionFlow":           "What the node does now, or what it did last.",
	"checkItems":           "What may be used to 80 % at most for a node to begin: cpu, mem, disk.",
	"currentVersion":       "The version that the node has.",
	"failureTolerate":      "Which share of the nodes may fail before no more begin, from 0 to 1; 0.1 when empty.",
	"historicVersion":      "The version that the node had before.",
	"imagePrePullTemplate": "Which images are pulled, on which nodes.",
	"nodeStatus":           "How far each node is.",
	"phase":                "How far it is: Init, InProgress, Completed or Failure; of a node Pending, InProgress, Successful, Failure or Unknown.",
	"state":                "How far it is, in v1alpha1: Init, Upgrading or Pulling, Successful or Failed.",
	"time":                 "When that was known.",
	"timeoutSeconds":       "How many seconds a node may take; 600 when empty.",
	"updateFields":         "Settings of edgecore, by their names with dots, such as link.rate.",
	"request":              "The request for a certificate, PKCS #10 in PEM, in base64.",
	// devices.kubeedge.io
	"actual":             "What the device reported. What a manifest says here is shown until something is known.",
	"bluetooth":          "Configuration for Bluetooth.",
	"characteristicUUID": "The characteristic of Bluetooth.",
	"com":                "A serial line.",
	"common":             "Configuration of the line, whatever the protocol.",
	"config":             "Values by name; what they mean is the protocol's.",
	"configData":         "Values by name; what they mean is the protocol's.",
	"customizedProtocol": "A protocol that has no section of its own.",
	"expected":           "The desired value, like the canonical spec.desired.",
	"id":                 "The node's name.",
	"key":                "The label's key. Whatever it is, the first value is the node's name.",
	"lastOnlineTime":     "When the device was seen last.",
	"matchExpressions":   "The first of them names the node.",
	"metadata":           "What else is known of it, such as a timestamp.",
	"modbus":             "Configuration for Modbus.",
	"node":               "The node that the device is bound to; nodeName says the same.",
	"nodeSelector":       "Binds the device to the node that the first value of its first expression names.",
	"nodeSelectorTerms":  "The first of them names the node.",
	"methods":            "Commands: each sets some properties when it is called.",
	"observedDesired":    "The desired value that was in force.",
	"opcua":              "Configuration for OPC UA.",
	"operator":           "In.",
	"properties":         "What is wanted of each property and how to reach it, or what a model has.",
	"propertyNames":      "The properties that the method sets.",
	"protocol":           "How to reach the device.",
	"protocolConfigData": "Configuration of the protocol that devices of the model have, where they don't say otherwise.",
	"protocolName":       "The protocol that a mapper speaks.",
	"address":            "The broker's address, such as mqtt://host:1883.",
	"hostName":           "The endpoint's host, with http:// or https:// before it.",
	"http":               "An HTTP endpoint.",
	"mqtt":               "A topic of a broker.",
	"port":               "The endpoint's port.",
	"pushMethod":         "Where the node sends reported values besides.",
	"qos":                "0, 1 or 2.",
	"requestPath":        "The endpoint's path.",
	"retained":           "Whether the broker keeps the last value.",
	"topic":              "Where values are published.",
	"reportToCloud":      "false keeps what is reported on the node.",
	"stateReport":        "Whether the hub is told the device's state.",
	"tcp":                "A network address.",
	"twins":              "What is wanted and what is known of each property.",
	"type":               "The type.",
	"value":              "The value, as text.",
	"values":             "The first is the node's name.",
	"visitors":           "How to reach the property, or each of them.",

	// flightctl.io
	"applicationStatus":      "Is empty.",
	"approval":               "What was decided, once it was.",
	"approved":               "Whether the request was approved.",
	"approvedAt":             "When the decision was carried out.",
	"authType":               "docker.",
	"ca.crt":                 "The certificate of the authority that signed the server's, PEM in base64.",
	"currentBatch":           "The batch that is under way.",
	"devicesSummary":         "How many nodes the fleet has, and how far they are.",
	"httpConfig":             "Credentials for HTTP. They are stored unencrypted; a Secret is the better place.",
	"ociAuth":                "Credentials for a registry. They are stored unencrypted; a Secret is the better place.",
	"password":               "The password.",
	"privateKeyPassphrase":   "The passphrase of the key.",
	"registry":               "The registry's host, and a path below it if there is one.",
	"scheme":                 "https, or http for a registry without TLS.",
	"skipServerVerification": "Any certificate or host key is taken. Only for trying things out.",
	"sshConfig":              "Credentials for SSH. They are stored unencrypted; a Secret is the better place.",
	"sshPrivateKey":          "The private key, PEM in base64.",
	"summaryStatus":          "Is empty.",
	"tls.crt":                "The client's certificate, PEM in base64.",
	"tls.key":                "The key of the client's certificate, PEM in base64.",
	"token":                  "A bearer token.",
	"total":                  "How many nodes the fleet has.",
	"updateStatus":           "How many nodes have the version, are given it, or are still to get it.",
	"username":               "The user's name.",
	"applicationsSummary":    "How the applications are, together.",
	"info":                   "Why, for people.",
	"inline":                 "Files with their content, or an Ignition document.",
	"lifecycle":              "Enrolled once anything is known of the node, Decommissioning until a decommissioned node was told, Decommissioned, or Unknown if its certificates were revoked.",
	"renderedVersion":        "The version that the node has applied.",
	"summary":                "Online, as the hub sees the connection, or Unknown.",
	"unit":                   "The unit's name.",
	"updated":                "UpToDate if the node has applied the version that it is sent, else OutOfDate; Unknown if it has reported none.",
	"mountPath":              "Where the Secret's values go on the node.",
	"namespace":              "The Secret's namespace.",
	"path":                   "The directory in the repository.",
	"ref":                    "The branch, tag or commit.",
	"repository":             "The Repository's name.",
	"template":               "What each node of the fleet is to be.",
}
