// SPDX-License-Identifier: Apache-2.0

package opcua

import "github.com/edgebus/edgebus/mappers"

func limit(v float64) *float64 { return &v }

// protocolSettings are the settings of OPC UA servers. What isn't here is refused.
var protocolSettings = mappers.ProtocolSettings{
	Device: []mappers.ProtocolSetting{
		{Name: "endpoint", Type: "string", Required: true, Address: true, Help: "the server's URL: opc.tcp://10.0.0.5:4840"},
		{Name: "securityPolicy", Type: "string", Default: "auto", Enum: []string{"auto", "None", "Basic256Sha256", "Aes128_Sha256_RsaOaep", "Aes256_Sha256_RsaPss"}, Help: "auto is the best that the server offers"},
		{Name: "securityMode", Type: "string", Enum: []string{"None", "Sign", "SignAndEncrypt"}, Help: "default: the best with the policy"},
		{Name: "fingerprint", Type: "string", Help: "SHA-256 of the server's certificate, in hexadecimal (default: any)"},
		{Name: "credentials", Type: "string", Help: "name of a file in the mapper's directory of credentials, with user and password (default: anonymous)"},
		{Name: "publishingInterval", Type: "duration", Default: "1s", Help: "of the subscription, 0s to 1h; 0s: values are read"},
		{Name: "maxNodes", Type: "int", Minimum: limit(1), Maximum: limit(10000), Help: "most nodes in one request (default: 500, or what was found out)"},
		{Name: "timeout", Type: "duration", Help: "for an answer, 10ms to 10m (default: the mapper's)"},
	},
	Property: []mappers.ProtocolSetting{
		{Name: "node", Type: "string", Required: true, Help: "nsu=http://vendor/press;s=Temperature, ns=2;s=Temperature or i=2258"},
		{Name: "index", Type: "string", Help: "of an array: 0, or 0:3 (default: all of it)"},
		{Name: "path", Type: "string", Help: "of a structure: its member, Axes[1].Load (default: all of it, as an object)"},
		{Name: "samplingInterval", Type: "duration", Help: "how often the server looks, 0s to 1h (default: the cycle, at most 1s)"},
	},
	Event: []mappers.ProtocolSetting{
		{Name: "notifier", Type: "string", Default: serverObject.String(), Help: "the object that tells the event; the default is the server, which tells all"},
		{Name: "type", Type: "string", Help: "the event's type, or one that it is derived from (default: any)"},
		{Name: "source", Type: "string", Help: "the name of its source (default: any)"},
		{Name: "minSeverity", Type: "int", Minimum: limit(1), Maximum: limit(1000), Help: "the least severity (default: any)"},
		{Name: "field", Type: "string", Help: "the field that the event says: Message, or nsu=http://vendor/press;Load (default: time, source, severity and message as JSON)"},
	},
	Command: []mappers.ProtocolSetting{
		{Name: "object", Type: "string", Required: true, Help: "the object whose method is called"},
		{Name: "method", Type: "string", Required: true, Help: "the method's node"},
	},
}

// Settings implements mappers.Describer.
func (d *Driver) Settings() mappers.ProtocolSettings { return protocolSettings }
