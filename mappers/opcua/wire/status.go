// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// Status is an OPC UA status code; 0 is Good. As an error it is a server's answer.
type Status uint32

// The status codes that this package and its users tell apart.
const (
	StatusGood                Status = 0
	BadUnexpectedError        Status = 0x80010000
	BadCommunicationError     Status = 0x80050000
	BadDecodingError          Status = 0x80070000
	BadEncodingLimitsExceeded Status = 0x80080000
	BadTimeout                Status = 0x800A0000
	BadServiceUnsupported     Status = 0x800B0000
	BadServerHalted           Status = 0x800E0000
	BadNothingToDo            Status = 0x800F0000
	BadTooManyOperations      Status = 0x80100000
	BadCertificateInvalid     Status = 0x80120000
	BadSecurityChecksFailed   Status = 0x80130000
	BadCertificateUntrusted   Status = 0x801A0000
	BadUserAccessDenied       Status = 0x801F0000
	BadIdentityTokenInvalid   Status = 0x80200000
	BadIdentityTokenRejected  Status = 0x80210000
	BadSessionIDInvalid       Status = 0x80250000
	BadSessionClosed          Status = 0x80260000
	BadNoSubscription         Status = 0x80790000
	BadTooManyPublishRequests Status = 0x80780000
	BadNoCommunication        Status = 0x80310000
	BadWaitingForInitialData  Status = 0x80320000
	BadNodeIDInvalid          Status = 0x80330000
	BadNodeIDUnknown          Status = 0x80340000
	BadAttributeIDInvalid     Status = 0x80350000
	BadNotReadable            Status = 0x803A0000
	BadNotWritable            Status = 0x803B0000
	BadOutOfRange             Status = 0x803C0000
	BadNotSupported           Status = 0x803D0000
	BadNotFound               Status = 0x803E0000
	BadWriteNotSupported      Status = 0x80730000
	BadTypeMismatch           Status = 0x80740000
	BadMethodInvalid          Status = 0x80750000
	BadArgumentsMissing       Status = 0x80760000
	BadTooManySubscriptions   Status = 0x80770000
	BadDeviceFailure          Status = 0x808B0000
	BadSensorFailure          Status = 0x808C0000
	BadOutOfService           Status = 0x808D0000
	BadNotConnected           Status = 0x808A0000
	BadInvalidArgument        Status = 0x80AB0000
	BadResourceUnavailable    Status = 0x80040000
	BadConnectionRejected     Status = 0x80AC0000
	BadConfigurationError     Status = 0x80890000
	BadTCPEndpointURLInvalid  Status = 0x80830000
	BadTCPServerTooBusy       Status = 0x807D0000
	BadTooManySessions        Status = 0x80560000
)

var statusNames = map[Status]string{
	StatusGood: "Good", BadUnexpectedError: "BadUnexpectedError", BadCommunicationError: "BadCommunicationError", BadDecodingError: "BadDecodingError",
	BadEncodingLimitsExceeded: "BadEncodingLimitsExceeded", BadTimeout: "BadTimeout", BadServiceUnsupported: "BadServiceUnsupported",
	BadServerHalted: "BadServerHalted", BadNothingToDo: "BadNothingToDo", BadTooManyOperations: "BadTooManyOperations",
	BadCertificateInvalid: "BadCertificateInvalid", BadSecurityChecksFailed: "BadSecurityChecksFailed", BadCertificateUntrusted: "BadCertificateUntrusted",
	BadUserAccessDenied: "BadUserAccessDenied", BadIdentityTokenInvalid: "BadIdentityTokenInvalid", BadIdentityTokenRejected: "BadIdentityTokenRejected",
	BadSessionIDInvalid: "BadSessionIdInvalid", BadSessionClosed: "BadSessionClosed", BadNoSubscription: "BadNoSubscription",
	BadTooManyPublishRequests: "BadTooManyPublishRequests", BadNoCommunication: "BadNoCommunication", BadWaitingForInitialData: "BadWaitingForInitialData",
	BadNodeIDInvalid: "BadNodeIdInvalid", BadNodeIDUnknown: "BadNodeIdUnknown", BadAttributeIDInvalid: "BadAttributeIdInvalid",
	BadNotReadable: "BadNotReadable", BadNotWritable: "BadNotWritable", BadOutOfRange: "BadOutOfRange", BadNotSupported: "BadNotSupported",
	BadNotFound: "BadNotFound", BadWriteNotSupported: "BadWriteNotSupported", BadTypeMismatch: "BadTypeMismatch", BadMethodInvalid: "BadMethodInvalid",
	BadArgumentsMissing: "BadArgumentsMissing", BadTooManySubscriptions: "BadTooManySubscriptions", BadDeviceFailure: "BadDeviceFailure",
	BadSensorFailure: "BadSensorFailure", BadOutOfService: "BadOutOfService", BadNotConnected: "BadNotConnected", BadInvalidArgument: "BadInvalidArgument",
	BadResourceUnavailable: "BadResourceUnavailable", BadConnectionRejected: "BadConnectionRejected", BadConfigurationError: "BadConfigurationError",
	BadTCPEndpointURLInvalid: "BadTcpEndpointUrlInvalid", BadTCPServerTooBusy: "BadTcpServerTooBusy", BadTooManySessions: "BadTooManySessions",
}

// IsGood reports whether a value with the code can be used.
func (s Status) IsGood() bool { return s>>30 == 0 }

// IsBad reports whether there is no value.
func (s Status) IsBad() bool { return s>>31 == 1 }

// HasNoSession reports whether a request was not carried out because the server has ended, or forgotten, the session or is about to end itself: another
// connection is needed.
func (s Status) HasNoSession() bool {
	return s.Is(BadSessionIDInvalid) || s.Is(BadSessionClosed) || s.Is(BadServerHalted)
}

func (s Status) code() Status { return s &^ 0xFFFF }

// Is reports whether it is one of some codes; what the low bits say besides doesn't count.
func (s Status) Is(target error) bool {
	t, ok := target.(Status)
	return ok && s.code() == t.code()
}

func (s Status) Error() string {
	if name, ok := statusNames[s.code()]; ok {
		return name
	}
	if s.IsGood() {
		return fmt.Sprintf("Good (%#08x)", uint32(s))
	}
	if !s.IsBad() {
		return fmt.Sprintf("Uncertain (%#08x)", uint32(s))
	}
	return fmt.Sprintf("Bad (%#08x)", uint32(s))
}
