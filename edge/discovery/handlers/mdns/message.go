// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
)

// The types of records that matter here, and the bits of the class.
const (
	typeA    = 1
	typePTR  = 12
	typeTXT  = 16
	typeAAAA = 28
	typeSRV  = 33

	classIN    = 1
	cacheFlush = 1 << 15
)

// domainName is a domain name as its labels. Labels may have dots: golang.org/x/net/dns/dnsmessage refuses whole messages with such a name,
// which for names of services are common.
type domainName []string

// key is the same for all spellings of a name.
func (n domainName) key() string { return strings.ToLower(n.String()) }

func (n domainName) String() string {
	escaped := make([]string, len(n))
	for i, label := range n {
		escaped[i] = strings.NewReplacer(`\`, `\\`, ".", `\.`).Replace(label)
	}
	return strings.Join(escaped, ".")
}

// resourceRecord is a resource record of a response.
type resourceRecord struct {
	name    domainName
	kind    uint16
	flush   bool // it takes the place of those of its name and kind
	ttl     uint32
	target  domainName // of PTR and SRV
	port    uint16
	address netip.Addr
	text    []string
}

var (
	errShort = errors.New("the message is cut off")
	errName  = errors.New("a name is malformed")
)

// maxRecords bounds those of one message, which has at most 9,000 bytes.
const maxRecords = 800

// parseResponse returns the records of a response; none of a query.
func parseResponse(b []byte) ([]resourceRecord, error) {
	if len(b) < 12 {
		return nil, errShort
	}
	if b[2]&0x80 == 0 { // a query
		return nil, nil
	}
	count := func(at int) int { return int(binary.BigEndian.Uint16(b[at:])) }
	questions, answers := count(4), count(6)+count(8)+count(10)
	if questions+answers > maxRecords {
		return nil, errors.New("too many records")
	}
	at := 12
	for range questions {
		_, next, err := parseName(b, at)
		if err != nil {
			return nil, err
		}
		if at = next + 4; at > len(b) {
			return nil, errShort
		}
	}
	var records []resourceRecord
	for range answers {
		r, next, err := parseRecord(b, at)
		if err != nil {
			return nil, err
		}
		at = next
		records = append(records, r)
	}
	return records, nil
}

func parseRecord(b []byte, at int) (r resourceRecord, next int, err error) {
	if r.name, at, err = parseName(b, at); err != nil {
		return r, 0, err
	}
	if at+10 > len(b) {
		return r, 0, errShort
	}
	r.kind = binary.BigEndian.Uint16(b[at:])
	class := binary.BigEndian.Uint16(b[at+2:])
	r.flush, r.ttl = class&cacheFlush != 0, binary.BigEndian.Uint32(b[at+4:])
	size := int(binary.BigEndian.Uint16(b[at+8:]))
	at += 10
	if next = at + size; next > len(b) {
		return r, 0, errShort
	}
	if class&^cacheFlush != classIN {
		r.kind = 0
	}
	data := b[at:next]
	switch r.kind {
	case typePTR:
		r.target, _, err = parseName(b[:next], at)
	case typeSRV:
		if size < 7 {
			return r, 0, errShort
		}
		r.port = binary.BigEndian.Uint16(data[4:])
		r.target, _, err = parseName(b[:next], at+6)
	case typeTXT:
		r.text, err = parseText(data)
	case typeA, typeAAAA:
		address, ok := netip.AddrFromSlice(data)
		if !ok || address.Is4() != (r.kind == typeA) {
			return r, 0, errors.New("an address has a wrong length")
		}
		r.address = address
	}
	return r, next, err
}

func parseText(data []byte) (texts []string, err error) {
	for len(data) > 0 {
		n := int(data[0])
		if n >= len(data) {
			return nil, errShort
		}
		texts = append(texts, string(data[1:1+n]))
		data = data[1+n:]
	}
	return texts, nil
}

// parseName reads a name. Pointers lead backwards only, so that none can lead around in a circle.
func parseName(b []byte, at int) (n domainName, next int, err error) {
	next, limit, total := -1, at, 0
	for {
		if at >= len(b) {
			return nil, 0, errShort
		}
		size := int(b[at])
		at++
		switch {
		case size == 0:
			if next < 0 {
				next = at
			}
			return n, next, nil
		case size < 64:
			if at+size > len(b) {
				return nil, 0, errShort
			}
			if total += size + 1; total > 255 {
				return nil, 0, errName
			}
			n = append(n, string(b[at:at+size]))
			at += size
		case size >= 192:
			if at >= len(b) {
				return nil, 0, errShort
			}
			if next < 0 {
				next = at + 1
			}
			if at = (size&63)<<8 | int(b[at]); at >= limit {
				return nil, 0, errName
			}
			limit = at
		default:
			return nil, 0, errName
		}
	}
}

// question asks for the records of a name.
type question struct {
	name domainName
	kind uint16
}

// encodeQuery makes a message of questions.
func encodeQuery(questions []question) []byte {
	b := make([]byte, 12, 512)
	binary.BigEndian.PutUint16(b[4:], uint16(len(questions)))
	for _, q := range questions {
		b = appendName(b, q.name)
		b = binary.BigEndian.AppendUint16(b, q.kind)
		b = binary.BigEndian.AppendUint16(b, classIN)
	}
	return b
}

func appendName(b []byte, n domainName) []byte {
	for _, label := range n {
		b = append(b, byte(len(label)))
		b = append(b, label...)
	}
	return append(b, 0)
}
