package broker

import (
	"errors"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// MQTT 5 reason codes that this package gives.
const (
	codeSuccess          = 0x00
	codeWill             = 0x04
	codeNoSubscription   = 0x11
	codeUnspecified      = 0x80
	codeMalformed        = 0x81
	codeProtocolError    = 0x82
	codeImplementation   = 0x83
	codeBadVersion       = 0x84
	codeBadClientID      = 0x85
	codeBadCredentials   = 0x86
	codeNotAuthorized    = 0x87
	codeUnavailable      = 0x88
	codeServerBusy       = 0x89
	codeShuttingDown     = 0x8B
	codeKeepAlive        = 0x8D
	codeBadAuthMethod    = 0x8C
	codeTakenOver        = 0x8E
	codeBadFilter        = 0x8F
	codeBadTopic         = 0x90
	codeReceiveMaximum   = 0x93
	codeBadAlias         = 0x94
	codeTooLarge         = 0x95
	codeQuota            = 0x97
	codeAdministrative   = 0x98
	codeBadPayload       = 0x99
	codeConnectRate      = 0x9F
	maxReason            = 1024 // bytes of a reason string
	connackUnavailable   = 0x03 // MQTT 3.1.1 return codes
	connackNotAuthorized = 0x05
	connackBadIdentifier = 0x02
	connackBadVersion    = 0x01
)

// closeReasons name in counters why the broker closed a connection.
var closeReasons = map[byte]string{
	codeMalformed: "malformed packet", codeProtocolError: "protocol error", codeReceiveMaximum: "receive maximum exceeded",
	codeBadAlias: "topic alias", codeTooLarge: "packet too large", codeKeepAlive: "keep-alive", codeTakenOver: "taken over",
	codeShuttingDown: "server shutting down", codeAdministrative: "administrative", codeQuota: "quota exceeded",
	codeNotAuthorized: "certificate expired",
}

const readsNothing = "client reads nothing"

// codeOf is the reason code of a refused publish: the one place where an error's
// kind becomes MQTT. Only codes that the standard allows in a PUBACK and a PUBREC
// are used, for some clients take any other for a broken packet: what is too
// large is told by 0x97 and its reason string.
func codeOf(err error) byte {
	var topicErr *topics.Error
	if errors.As(err, &topicErr) {
		return codeBadTopic
	}
	switch resource.KindOf(err) {
	case resource.Invalid:
		return codeBadPayload
	case resource.BadTopic, resource.NotFound:
		return codeBadTopic
	case resource.Unauthorized, resource.Forbidden:
		return codeNotAuthorized
	case resource.TooLarge, resource.Quota:
		return codeQuota
	case resource.Conflict, resource.AlreadyExists, resource.Gone, resource.Unavailable:
		return codeImplementation
	}
	return codeUnspecified
}

// kindOf names the refusal in counters and logs.
func kindOf(err error) resource.ErrorKind {
	var topicErr *topics.Error
	if errors.As(err, &topicErr) {
		return resource.BadTopic
	}
	return resource.KindOf(err)
}

// reasonOf is the reason string of a refusal. What is the broker's own fault is
// not told to clients.
func reasonOf(err error) string {
	if kindOf(err) == resource.Internal {
		return "internal error"
	}
	reason := err.Error()
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return validText(reason)
}
