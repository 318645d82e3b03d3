// SPDX-License-Identifier: Apache-2.0

package rawgrpc

import "google.golang.org/protobuf/encoding/protowire"

// EachField calls visit with each field of a protobuf message. Number is the value of a varint, or the bits of a fixed-size field; text is the
// content of a field with a length, and nil for all others.
func EachField(message []byte, visit func(field protowire.Number, number uint64, text []byte) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var number uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type:
			var bits uint32
			bits, n = protowire.ConsumeFixed32(message)
			number = uint64(bits)
		case protowire.Fixed64Type:
			number, n = protowire.ConsumeFixed64(message)
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := visit(field, number, text); err != nil {
			return err
		}
	}
	return nil
}
