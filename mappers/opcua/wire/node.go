// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// NodeID names a node of a server: a number, a text, a GUID or bytes in a namespace. The zero value is the null identifier.
type NodeID struct {
	Namespace uint16
	kind      byte // 'i', which 0 is too, 's', 'g' or 'b'
	number    uint32
	text      string // of s; the bytes of g and b
}

// The kinds in the encoding.
const (
	encodingTwoByte = iota
	encodingFourByte
	encodingNumeric
	encodingString
	encodingGUID
	encodingOpaque
)

// NumericID makes the identifier of a number.
func NumericID(namespace uint16, number uint32) NodeID {
	return NodeID{Namespace: namespace, number: number}
}

// IsNull reports whether it names nothing.
func (n NodeID) IsNull() bool { return n == NodeID{} }

// String is ns=2;s=Temperature, as ParseNodeID takes it.
func (n NodeID) String() string {
	prefix := ""
	if n.Namespace != 0 {
		prefix = fmt.Sprintf("ns=%d;", n.Namespace)
	}
	return prefix + n.identifier()
}

// InNamespace is the identifier with the namespace's name, which a server's new firmware doesn't change: nsu=http://…;s=Temperature.
func (n NodeID) InNamespace(uri string) string {
	return "nsu=" + strings.NewReplacer("%", "%25", ";", "%3B").Replace(uri) + ";" + n.identifier()
}

func (n NodeID) identifier() string {
	switch n.kind {
	case 's':
		return "s=" + n.text
	case 'g':
		h := hex.EncodeToString([]byte{n.text[3], n.text[2], n.text[1], n.text[0], n.text[5], n.text[4], n.text[7], n.text[6]}) + hex.EncodeToString([]byte(n.text[8:]))
		return "g=" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	case 'b':
		return "b=" + base64.StdEncoding.EncodeToString([]byte(n.text))
	}
	return "i=" + strconv.FormatUint(uint64(n.number), 10)
}

var errNodeID = errors.New("is no node such as nsu=http://vendor/press;s=Temperature, ns=2;i=1001 or i=2258")

// ParseNodeID understands i=, s=, g= and b=, with ns=N; or nsu=NAME; before it. namespace is the name after nsu=, of which the number
// has to be found in the server's list.
func ParseNodeID(text string) (n NodeID, namespace string, err error) {
	rest := strings.TrimSpace(text)
	if uri, after, ok := strings.Cut(rest, ";"); ok && strings.HasPrefix(uri, "nsu=") {
		namespace, rest = strings.NewReplacer("%3B", ";", "%3b", ";", "%25", "%").Replace(uri[4:]), after
		if namespace == "" {
			return n, "", errNodeID
		}
	} else if number, after, ok := strings.Cut(rest, ";"); ok && strings.HasPrefix(number, "ns=") {
		v, err := strconv.ParseUint(number[3:], 10, 16)
		if err != nil {
			return n, "", errNodeID
		}
		n.Namespace, rest = uint16(v), after
	}
	if len(rest) < 3 || rest[1] != '=' {
		return n, "", errNodeID
	}
	switch value := rest[2:]; rest[0] {
	case 'i':
		v, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return n, "", errNodeID
		}
		n.number = uint32(v)
	case 's':
		n.kind, n.text = 's', value
	case 'g':
		b, err := hex.DecodeString(strings.ReplaceAll(value, "-", ""))
		if err != nil || len(b) != 16 {
			return n, "", errNodeID
		}
		n.kind = 'g'
		n.text = string([]byte{b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6]}) + string(b[8:])
	case 'b':
		b, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return n, "", errNodeID
		}
		n.kind, n.text = 'b', string(b)
	default:
		return n, "", errNodeID
	}
	return n, namespace, nil
}

func (r *reader) nodeID() NodeID {
	n, _ := r.expandedID()
	return n
}

// maxIdentifier is the standard's limit of texts and bytes in identifiers.
const maxIdentifier = 4096

// expandedID reads an identifier that may have its namespace's name with it, or be another server's: it is not one of this server's then.
func (r *reader) expandedID() (n NodeID, elsewhere bool) {
	first := r.byte()
	switch first & 0x3F {
	case encodingTwoByte:
		n.number = uint32(r.byte())
	case encodingFourByte:
		n.Namespace = uint16(r.byte())
		n.number = uint32(r.uint16())
	case encodingNumeric:
		n.Namespace, n.number = r.uint16(), r.uint32()
	case encodingString:
		n.Namespace, n.kind = r.uint16(), 's'
		n.text = r.string()
	case encodingGUID:
		n.Namespace = r.uint16()
		if b := r.take(16); b != nil {
			n.kind, n.text = 'g', string(b)
		}
	case encodingOpaque:
		n.Namespace, n.kind = r.uint16(), 'b'
		n.text = r.string()
	default:
		r.fail(fmt.Errorf("encoding %#x of an identifier is not known", first))
	}
	if len(n.text) > maxIdentifier {
		r.fail(fmt.Errorf("an identifier has %d bytes, more than %d", len(n.text), maxIdentifier))
	}
	if first&0x80 != 0 {
		elsewhere = r.string() != ""
	}
	if first&0x40 != 0 {
		elsewhere = r.uint32() != 0 || elsewhere
	}
	return n, elsewhere
}

func (w *writer) nodeID(n NodeID) {
	switch {
	case n.kind == 's':
		w.byte(encodingString)
		w.uint16(n.Namespace)
		w.bytes([]byte(n.text))
	case n.kind == 'g':
		w.byte(encodingGUID)
		w.uint16(n.Namespace)
		w.data = append(w.data, n.text...)
	case n.kind == 'b':
		w.byte(encodingOpaque)
		w.uint16(n.Namespace)
		w.bytes([]byte(n.text))
	case n.Namespace == 0 && n.number < 256:
		w.byte(encodingTwoByte)
		w.byte(byte(n.number))
	case n.Namespace < 256 && n.number < 65536:
		w.byte(encodingFourByte)
		w.byte(byte(n.Namespace))
		w.uint16(uint16(n.number))
	default:
		w.byte(encodingNumeric)
		w.uint16(n.Namespace)
		w.uint32(n.number)
	}
}
