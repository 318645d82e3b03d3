// SPDX-License-Identifier: Apache-2.0

package http

import "github.com/edgebus/edgebus/mappers"

// protocolSettings are the settings of HTTP devices. What isn't here is refused.
var protocolSettings = mappers.ProtocolSettings{
	Device: []mappers.ProtocolSetting{
		{Name: "url", Type: "string", Required: true, Address: true, Help: "the device's: http://10.0.0.9 or https://10.0.0.9/api"},
		{Name: "auth", Type: "string", Default: "none", Enum: authKinds, Help: "how the mapper signs in"},
		{Name: "header", Type: "string", Help: "name of the header that has the key, with auth header"},
		{Name: "credentials", Type: "string", Help: "name of a file in the mapper's directory of credentials: user and password, a token, or a key"},
		{Name: "ca", Type: "string", Help: "name of a file there with the certificate, PEM, that the device's is checked by (default: the system's)"},
		{Name: "hook", Type: "string", Help: "name of a file there with the secret by which the device sends values itself, to /hooks/{device}/{secret}"},
		{Name: "timeout", Type: "duration", Help: "for an answer, 10ms to 10m (default: the mapper's)"},
	},
	Property: []mappers.ProtocolSetting{
		{Name: "get", Type: "string", Help: "path that is asked for the value: /status; without it the value comes by a hook"},
		{Name: "path", Type: "string", Help: "where the value is in the JSON of the answer, or of what the device sends (default: all of it)"},
		{Name: "write", Type: "string", Help: "request that sets the value: PUT /relay/0; required for a property that is ReadWrite"},
		{Name: "body", Type: "string", Help: "of that request, with {value} or {json} (default: the value)"},
		{Name: "contentType", Type: "string", Default: "application/json", Help: "of the body"},
	},
	Event: []mappers.ProtocolSetting{
		{Name: "path", Type: "string", Help: "where the event is in the JSON of what the device sends by its hook (default: all of it)"},
	},
	Command: []mappers.ProtocolSetting{
		{Name: "write", Type: "string", Required: true, Help: "request that the command makes: POST /reboot"},
		{Name: "body", Type: "string", Help: "of that request, with {value} or {json} for the input"},
		{Name: "contentType", Type: "string", Default: "application/json", Help: "of the body"},
	},
}

// Settings implements mappers.Describer.
func (d *Driver) Settings() mappers.ProtocolSettings { return protocolSettings }
