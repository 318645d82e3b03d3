package opcua

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// application is what a server says of one that it knows, itself for the most part (ApplicationDescription).
type application struct {
	uri, product, name string
	kind               uint32
	urls               []string
}

// The numbers of the standard (OPC 10000-4 and -6).
const (
	kindServer          = 0
	kindClientAndServer = 2
	kindDiscoveryServer = 3

	openRequest  = 446
	openResponse = 449
	findRequest  = 422
	findResponse = 425
	faultID      = 397

	policyNone = "http://opcfoundation.org/UA/SecurityPolicy#None"
)

// The bounds of what a server may answer.
const (
	maxChunk   = 64 << 10
	maxMessage = 1 << 20
	maxServers = 1000
	maxURLs    = 32
	maxString  = 4096
)

// findServers asks a server or discovery server at host:port, over a channel without security, which every server has for this question,
// which servers it knows.
//
// It is written here because gopcua v0.8.0 must not be pointed at a server that is not trusted: it allocates as much as the server
// says (Conn.Receive, decodeSlice), and panics in a goroutine of its own if that is less than a header.
func findServers(ctx context.Context, host, url string, timeout time.Duration) ([]application, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	servers, err := askServers(conn, url)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("no answer within %s", timeout)
	}
	return servers, err
}

// askServers asks over a connection.
func askServers(conn io.ReadWriter, url string) ([]application, error) {
	hello := messageWriter{}
	for _, n := range []uint32{0, maxChunk, maxChunk, maxMessage, maxMessage / maxChunk} {
		hello.u32(n)
	}
	hello.text(url)
	if err := sendChunk(conn, "HELF", hello); err != nil {
		return nil, err
	}
	if _, _, err := receiveChunk(conn, "ACK"); err != nil {
		return nil, err
	}

	open := messageWriter{}
	open.u32(0)
	open.text(policyNone)
	open.u32(nullLength) // no certificate
	open.u32(nullLength) // nor of the server
	open.u32(1)          // sequence number
	open.u32(1)          // request
	open.request(openRequest)
	open.u32(0) // protocol version
	open.u32(0) // a new channel
	open.u32(1) // without security
	open.u32(nullLength)
	open.u32(60_000) // lifetime in milliseconds
	if err := sendChunk(conn, "OPNF", open); err != nil {
		return nil, err
	}
	answer, err := receiveMessage(conn, "OPN")
	if err != nil {
		return nil, err
	}
	answer.response(openResponse)
	answer.u32() // protocol version
	channel, token := answer.u32(), answer.u32()
	if answer.err != nil {
		return nil, answer.err
	}

	find := messageWriter{}
	for _, n := range []uint32{channel, token, 2, 2} {
		find.u32(n)
	}
	find.request(findRequest)
	find.text(url)
	find.u32(nullLength) // any language
	find.u32(nullLength) // all servers
	if err := sendChunk(conn, "MSGF", find); err != nil {
		return nil, err
	}
	if answer, err = receiveMessage(conn, "MSG"); err != nil {
		return nil, err
	}
	servers := answer.servers()
	if answer.err != nil {
		return nil, answer.err
	}
	leave := messageWriter{}
	for _, n := range []uint32{channel, token, 3, 3} {
		leave.u32(n)
	}
	leave.request(452)
	_ = sendChunk(conn, "CLOF", leave) // it has answered; the connection is closed anyway
	return servers, nil
}

func sendChunk(w io.Writer, kind string, body messageWriter) error {
	frame := binary.LittleEndian.AppendUint32([]byte(kind), uint32(len(body)+8))
	_, err := w.Write(append(frame, body...))
	return err
}

// receiveChunk reads a chunk. final says that it is the last of its message.
func receiveChunk(r io.Reader, kind string) (body messageReader, final bool, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return body, false, err
	}
	size := binary.LittleEndian.Uint32(head[4:])
	if size < 8 || size > maxChunk {
		return body, false, fmt.Errorf("a chunk of %d bytes", size)
	}
	body.b = make([]byte, size-8)
	if _, err := io.ReadFull(r, body.b); err != nil {
		return body, false, err
	}
	switch got := string(head[:3]); {
	case got == "ERR":
		code := body.u32()
		return body, false, fmt.Errorf("the server answered with the error 0x%08X: %.200q", code, body.text())
	case got != kind:
		return body, false, fmt.Errorf("%q came instead of %s", got, kind)
	case head[3] == 'A':
		return body, false, errors.New("the server gave up its answer")
	}
	return body, head[3] == 'F', nil
}

// receiveMessage reads a whole message and takes the headers of its chunks off.
func receiveMessage(r io.Reader, kind string) (*messageReader, error) {
	whole := &messageReader{}
	for {
		chunk, final, err := receiveChunk(r, kind)
		if err != nil {
			return nil, err
		}
		chunk.u32() // channel
		if kind == "OPN" {
			for range 3 { // policy and certificates
				chunk.text()
			}
		} else {
			chunk.u32() // token
		}
		chunk.u32() // sequence number
		chunk.u32() // request
		if chunk.err != nil {
			return nil, chunk.err
		}
		if whole.b = append(whole.b, chunk.b...); len(whole.b) > maxMessage {
			return nil, fmt.Errorf("an answer of more than %d bytes", maxMessage)
		}
		if final {
			return whole, nil
		}
	}
}

// nullLength is the length of strings and lists that are not there.
const nullLength = 0xFFFFFFFF

// messageWriter has what is to be sent.
type messageWriter []byte

func (w *messageWriter) u32(n uint32) { *w = binary.LittleEndian.AppendUint32(*w, n) }

func (w *messageWriter) text(s string) {
	w.u32(uint32(len(s)))
	*w = append(*w, s...)
}

// request writes the type of a request, and its header.
func (w *messageWriter) request(id uint16) {
	*w = append(*w, 1, 0)
	*w = binary.LittleEndian.AppendUint16(*w, id)
	*w = append(*w, 0, 0) // no session
	*w = binary.LittleEndian.AppendUint64(*w, uint64(time.Now().UnixNano()/100+116444736000000000))
	w.u32(1) // handle
	w.u32(0) // no diagnostics
	w.u32(nullLength)
	w.u32(10_000)            // milliseconds
	*w = append(*w, 0, 0, 0) // nothing more
}

// messageReader reads what was received. After an error everything that it returns is zero.
type messageReader struct {
	b   []byte
	err error
}

var errShort = errors.New("the answer is cut off")

func (r *messageReader) take(n int) []byte {
	if r.err == nil && n > len(r.b) {
		r.err = errShort
	}
	if r.err != nil {
		return make([]byte, min(n, 8))
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *messageReader) u8() byte    { return r.take(1)[0] }
func (r *messageReader) u16() uint16 { return binary.LittleEndian.Uint16(r.take(2)) }
func (r *messageReader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }

// text reads a string or bytes.
func (r *messageReader) text() string {
	n := r.u32()
	if n == nullLength || r.err != nil {
		return ""
	}
	if int64(n) > int64(len(r.b)) {
		r.err = errShort
		return ""
	}
	return string(r.take(int(n)))
}

// list reads the length of a list.
func (r *messageReader) list(most int) int {
	n := r.u32()
	switch {
	case n == nullLength || r.err != nil:
		return 0
	case int64(n) > int64(most):
		r.err = fmt.Errorf("a list of %d entries", n)
		return 0
	}
	return int(n)
}

// node reads a NodeId with a number, which is all that headers have.
func (r *messageReader) node() uint32 {
	switch kind := r.u8(); kind {
	case 0:
		return uint32(r.u8())
	case 1:
		r.u8()
		return uint32(r.u16())
	case 2:
		r.u16()
		return r.u32()
	default:
		if r.err == nil {
			r.err = fmt.Errorf("a NodeId of the kind %d", kind)
		}
		return 0
	}
}

// response reads the type of a response, which must be this one, and its header.
func (r *messageReader) response(want uint32) {
	id := r.node()
	r.take(8) // time
	r.u32()   // handle
	result := r.u32()
	r.diagnostics(0)
	for range r.list(1000) {
		r.text()
	}
	r.node()
	if r.u8() == 1 {
		r.text()
	}
	switch {
	case r.err != nil:
	case result != 0:
		r.err = fmt.Errorf("the server answered with the error 0x%08X", result)
	case id != want:
		r.err = fmt.Errorf("an answer of the type %d (a fault is %d), not %d", id, faultID, want)
	}
}

// diagnostics reads a DiagnosticInfo, which may have another in it.
func (r *messageReader) diagnostics(depth int) {
	mask := r.u8()
	for bit := range 4 { // numbers of texts
		if mask&(1<<bit) != 0 {
			r.u32()
		}
	}
	if mask&0x10 != 0 {
		r.text()
	}
	if mask&0x20 != 0 {
		r.u32()
	}
	if mask&0x40 != 0 {
		if depth == 8 {
			r.err = errors.New("diagnostics are too deep")
			return
		}
		r.diagnostics(depth + 1)
	}
}

func (r *messageReader) servers() (list []application) {
	r.response(findResponse)
	for range r.list(maxServers) {
		a := application{uri: r.text(), product: r.text()}
		mask := r.u8()
		if mask&1 != 0 {
			r.text() // language
		}
		if mask&2 != 0 {
			a.name = r.text()
		}
		a.kind = r.u32()
		r.text() // gateway
		r.text() // profile
		for range r.list(maxURLs) {
			a.urls = append(a.urls, r.text())
		}
		if r.err != nil {
			return nil
		}
		list = append(list, a)
	}
	return list
}
