// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto/aes"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// SecurityMode is how messages are secured.
type SecurityMode uint32

// The modes.
const (
	ModeNone    SecurityMode = 1
	ModeSign    SecurityMode = 2
	ModeEncrypt SecurityMode = 3
)

const (
	chunkSize     = 65536 // that this side takes and sends
	maxMessage    = 16 << 20
	maxChunks     = 1024
	tokenLifetime = time.Hour
	writeTimeout  = 5 * time.Second
)

// Identity is who this client is: a key and the certificate of its application.
type Identity struct {
	Key  *rsa.PrivateKey
	Cert []byte // DER
	URI  string // the application's, which is in the certificate too
}

// channelSecurity is that of a channel.
type channelSecurity struct {
	policy   Policy
	mode     SecurityMode
	identity Identity
	server   []byte // the server's certificate, DER
	key      *rsa.PublicKey
}

// secureChannel is a connection with its secure channel. Requests are written by anybody, answers are read by one goroutine.
type secureChannel struct {
	conn net.Conn
	sec  channelSecurity
	url  string

	writing  sync.Mutex
	sequence uint32
	request  uint32
	id       uint32
	token    uint32
	sendKeys symmetricKeys
	sendMax  int // bytes of a chunk that the server takes

	// the reading goroutine's
	nextSequence uint32
	seenAny      bool
	parts        map[uint32][]byte
	chunks       map[uint32]int
	partBytes    int // of all parts

	mu       sync.Mutex
	receive  map[uint32]symmetricKeys // by token: of this one, and of the one before
	waiting  map[uint32]chan serviceAnswer
	err      error
	closed   chan struct{}
	lifetime time.Duration // of the token
}

// serviceAnswer is what came for a request: the body behind the response's header, or an error.
type serviceAnswer struct {
	typeID uint32
	header responseHeader
	body   []byte
	err    error
}

// dialChannel connects, says Hello, and opens a secure channel.
func dialChannel(ctx context.Context, host, url string, sec channelSecurity) (*secureChannel, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	c := &secureChannel{
		conn: conn, sec: sec, url: url, parts: map[uint32][]byte{}, chunks: map[uint32]int{}, receive: map[uint32]symmetricKeys{},
		waiting: map[uint32]chan serviceAnswer{}, closed: make(chan struct{}),
	}
	stop := context.AfterFunc(ctx, func() { c.fail(ctx.Err()) })
	defer stop()
	if err := c.hello(); err != nil {
		c.fail(err)
		return nil, c.reason(err)
	}
	go c.readLoop()
	if err := c.open(ctx, 0); err != nil {
		c.fail(err)
		return nil, c.reason(err)
	}
	return c, nil
}

// reason is why the channel ended, where that says more than err.
func (c *secureChannel) reason(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return err
}

// fail ends the channel, and with it all requests.
func (c *secureChannel) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.closed)
	_ = c.conn.Close()
	for id, w := range c.waiting {
		delete(c.waiting, id)
		w <- serviceAnswer{err: err}
	}
}

func (c *secureChannel) hello() error {
	var w writer
	w.data = append(w.data, "HELF\x00\x00\x00\x00"...)
	w.uint32(0) // version
	w.uint32(chunkSize)
	w.uint32(chunkSize)
	w.uint32(maxMessage)
	w.uint32(maxChunks)
	w.string(c.url)
	binary.LittleEndian.PutUint32(w.data[4:], uint32(len(w.data)))
	if _, err := c.conn.Write(w.data); err != nil {
		return err
	}
	kind, body, err := c.readMessage()
	if err != nil {
		return err
	}
	r := reader{data: body}
	if kind == "ERRF" {
		return readError(&r)
	}
	if kind != "ACKF" {
		return fmt.Errorf("a server that answers Hello with %q is no OPC UA server", kind)
	}
	r.uint32()
	c.sendMax = int(min(r.uint32(), chunkSize))
	if r.err == nil && c.sendMax < 8192 {
		return fmt.Errorf("the server takes chunks of %d bytes, and not the 8192 of the standard", c.sendMax)
	}
	return r.err
}

func readError(r *reader) error {
	status, text := Status(r.uint32()), r.string()
	if r.err != nil {
		return r.err
	}
	if text != "" {
		return fmt.Errorf("the server says %w: %.200s", status, text)
	}
	return fmt.Errorf("the server says %w", status)
}

// readMessage reads one chunk: its type, and what is behind type and length.
func (c *secureChannel) readMessage() (kind string, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		return "", nil, err
	}
	n := binary.LittleEndian.Uint32(head[4:])
	if n < 8 || n > chunkSize {
		return "", nil, fmt.Errorf("a chunk has %d bytes, not 8 to %d", n, chunkSize)
	}
	body = make([]byte, n-8)
	_, err = io.ReadFull(c.conn, body)
	return string(head[:4]), body, err
}

// readLoop takes what comes until the connection ends.
func (c *secureChannel) readLoop() {
	defer func() {
		if p := recover(); p != nil { // no server ends the program, whatever was overlooked
			c.fail(fmt.Errorf("a message can't be read: %v", p))
		}
	}()
	for {
		kind, body, err := c.readMessage()
		if err == nil {
			err = c.take(kind, body)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *secureChannel) take(kind string, body []byte) error {
	var request uint32
	var err error
	switch kind[:3] {
	case "ERR":
		return readError(&reader{data: body})
	case "OPN":
		request, body, err = c.unsealOpen(kind, body)
	case "MSG":
		request, body, err = c.unseal(kind, body)
	default:
		return fmt.Errorf("a message of type %q is not expected", kind)
	}
	if err != nil {
		return err
	}
	switch kind[3] {
	case 'A': // the server gives this answer up
		r := reader{data: body}
		err := readError(&r)
		c.drop(request)
		c.finish(request, serviceAnswer{err: err})
		return nil
	case 'C', 'F':
	default:
		return fmt.Errorf("a chunk of type %q is not expected", kind)
	}
	c.chunks[request]++
	if c.partBytes += len(body); c.partBytes > maxMessage || c.chunks[request] > maxChunks || len(c.chunks) > 64 {
		return fmt.Errorf("answers have more than %d bytes or %d chunks", maxMessage, maxChunks)
	}
	whole := append(c.parts[request], body...) //nolint:gocritic // it takes the place of the part
	c.parts[request] = whole
	if kind[3] == 'C' {
		return nil
	}
	c.drop(request)
	return c.deliver(request, whole)
}

// drop forgets the parts of an answer that have come.
func (c *secureChannel) drop(request uint32) {
	c.partBytes -= len(c.parts[request])
	delete(c.parts, request)
	delete(c.chunks, request)
}

// deliver passes an answer on to who asked.
func (c *secureChannel) deliver(request uint32, body []byte) error {
	r := reader{data: body}
	id := r.nodeID()
	a := serviceAnswer{typeID: id.number, header: r.responseHeader()}
	if r.err != nil {
		return fmt.Errorf("an answer's header: %w", r.err)
	}
	a.body = r.data
	if a.header.result.IsBad() {
		a.err = a.header.result
	}
	c.finish(request, a)
	return nil
}

func (c *secureChannel) finish(request uint32, a serviceAnswer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.waiting[request]; w != nil {
		delete(c.waiting, request)
		w <- a
	}
}

// ErrNotSent is of a request that was not sent, because the connection had ended.
var ErrNotSent = errors.New("the connection has ended")

// call sends a request and waits for its answer.
func (c *secureChannel) call(ctx context.Context, message []byte, seal func(*secureChannel, uint32, []byte) error) (serviceAnswer, error) {
	wait := make(chan serviceAnswer, 1)
	c.writing.Lock()
	c.request++
	request := c.request
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		c.writing.Unlock()
		return serviceAnswer{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.waiting[request] = wait
	c.mu.Unlock()
	err := seal(c, request, message)
	c.writing.Unlock()
	if err != nil {
		c.fail(err)
		return serviceAnswer{}, c.reason(err)
	}
	select {
	case a := <-wait:
		return a, a.err
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, request)
		c.mu.Unlock()
		return serviceAnswer{}, ctx.Err()
	}
}

// open asks for a channel (kind 0), or for a new token of it (kind 1).
func (c *secureChannel) open(ctx context.Context, kind uint32) error {
	var nonce []byte
	if c.sec.policy != PolicyNone {
		nonce = newNonce()
	}
	var w writer
	w.nodeID(NumericID(0, idOpenRequest))
	w.requestHeader(NodeID{}, 10*time.Second)
	w.uint32(0)
	w.uint32(kind)
	w.uint32(uint32(c.sec.mode))
	w.bytes(nonce)
	w.uint32(uint32(tokenLifetime / time.Millisecond))
	var serverNonce []byte
	a, err := c.call(ctx, w.data, (*secureChannel).sendOpen)
	if err != nil {
		return fmt.Errorf("open the secure channel: %w", c.reason(err))
	}
	r := reader{data: a.body}
	r.uint32()
	id, token := r.uint32(), r.uint32()
	r.time()
	lifetime := r.uint32()
	serverNonce = r.bytes()
	if r.err != nil || a.typeID != idOpenResponse {
		return fmt.Errorf("the answer to OpenSecureChannel can't be read: %w", errors.Join(r.err))
	}
	if c.sec.policy != PolicyNone && len(serverNonce) != nonceLength {
		return fmt.Errorf("the server's nonce has %d bytes, not %d", len(serverNonce), nonceLength)
	}
	c.mu.Lock()
	for t := range c.receive {
		if t != c.token {
			delete(c.receive, t)
		}
	}
	if c.sec.policy != PolicyNone {
		c.receive[token] = c.sec.policy.deriveKeys(nonce, serverNonce)
	} else {
		c.receive[token] = symmetricKeys{}
	}
	c.lifetime = min(max(time.Duration(lifetime)*time.Millisecond, 10*time.Second), tokenLifetime)
	c.mu.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.id, c.token = id, token
	if c.sec.policy != PolicyNone {
		c.sendKeys = c.sec.policy.deriveKeys(serverNonce, nonce)
	}
	return nil
}

// keepOpen renews the token at three quarters of its life, until the channel ends.
func (c *secureChannel) keepOpen() {
	for {
		c.mu.Lock()
		wait := c.lifetime * 3 / 4
		c.mu.Unlock()
		select {
		case <-c.closed:
			return
		case <-time.After(wait):
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := c.open(ctx, 1)
		cancel()
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// close says good-bye.
func (c *secureChannel) close() {
	var w writer
	w.nodeID(NumericID(0, idCloseChannelRequest))
	w.requestHeader(NodeID{}, time.Second)
	c.writing.Lock()
	c.request++
	_ = c.sealChunk("CLOF", c.request, w.data)
	c.writing.Unlock()
	c.fail(net.ErrClosed)
}

// sendOpen seals a request with the certificates' keys.
func (c *secureChannel) sendOpen(request uint32, body []byte) error {
	var w writer
	w.data = append(w.data, "OPNF\x00\x00\x00\x00"...)
	w.uint32(c.id)
	w.string(c.sec.policy.URI())
	if c.sec.policy == PolicyNone {
		w.bytes(nil)
		w.bytes(nil)
	} else {
		w.bytes(c.sec.identity.Cert)
		w.bytes(certificateThumbprint(c.sec.server))
	}
	head := len(w.data)
	c.writeSequence(&w, request)
	w.data = append(w.data, body...)
	if c.sec.policy == PolicyNone {
		return c.send(w.data)
	}
	block, cipherBlock := c.sec.policy.plainBlock(c.sec.key), c.sec.key.Size()
	signature := c.sec.identity.Key.Size()
	appendPadding(&w, head, block, signature, cipherBlock > 256)
	plain := len(w.data) - head + signature
	binary.LittleEndian.PutUint32(w.data[4:], uint32(head+plain/block*cipherBlock))
	sum, err := c.sec.policy.signRSA(c.sec.identity.Key, w.data)
	if err != nil {
		return err
	}
	w.data = append(w.data, sum...)
	sealed, err := c.sec.policy.encryptRSA(c.sec.key, w.data[head:])
	if err != nil {
		return err
	}
	return c.write(append(w.data[:head], sealed...))
}

// appendPadding fills up to whole blocks, with the signature that follows.
func appendPadding(w *writer, head, block, signature int, long bool) {
	extra := 1
	if long {
		extra = 2
	}
	n := (block - (len(w.data)-head+signature+extra)%block) % block
	for range n + 1 {
		w.byte(byte(n))
	}
	if long {
		w.byte(byte(n >> 8))
	}
}

// cutPadding takes the padding off; long: its length has two bytes.
func cutPadding(b []byte, long bool) ([]byte, error) {
	if len(b) < 2 {
		return nil, errShort
	}
	n, tail := int(b[len(b)-1]), 1
	if long {
		n, tail = n<<8|int(b[len(b)-2]), 2
	}
	if n+tail > len(b) {
		return nil, errors.New("a message's padding is longer than the message")
	}
	return b[:len(b)-n-tail], nil
}

func (c *secureChannel) writeSequence(w *writer, request uint32) {
	c.sequence++
	w.uint32(c.sequence)
	w.uint32(request)
}

// write ends the wait for a server that takes nothing any more, which holds up all that write.
func (c *secureChannel) write(b []byte) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.conn.Write(b)
	return err
}

func (c *secureChannel) send(b []byte) error {
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	return c.write(b)
}

// sendMessage seals a request with the channel's keys, in as many chunks as it takes.
func (c *secureChannel) sendMessage(request uint32, body []byte) error {
	room := c.sendMax - 24 - signatureLength - 2*aes.BlockSize
	for len(body) > room {
		if err := c.sealChunk("MSGC", request, body[:room]); err != nil {
			return err
		}
		body = body[room:]
	}
	return c.sealChunk("MSGF", request, body)
}

func (c *secureChannel) sealChunk(kind string, request uint32, body []byte) error {
	var w writer
	w.data = append(w.data, kind+"\x00\x00\x00\x00"...)
	w.uint32(c.id)
	w.uint32(c.token)
	head := len(w.data)
	c.writeSequence(&w, request)
	w.data = append(w.data, body...)
	if c.sec.mode == ModeNone {
		return c.send(w.data)
	}
	if c.sec.mode == ModeEncrypt {
		appendPadding(&w, head, aes.BlockSize, signatureLength, false)
	}
	binary.LittleEndian.PutUint32(w.data[4:], uint32(len(w.data)+signatureLength))
	w.data = append(w.data, c.sendKeys.sign(w.data)...)
	if c.sec.mode == ModeEncrypt {
		if err := c.sendKeys.encrypt(w.data[head:]); err != nil {
			return err
		}
	}
	return c.send(w.data)
}

// unsealOpen opens an answer that is sealed with the certificates' keys.
func (c *secureChannel) unsealOpen(kind string, body []byte) (request uint32, plain []byte, err error) {
	r := reader{data: body}
	r.uint32()
	policy, cert, receiver := r.string(), r.bytes(), r.bytes()
	if r.err != nil {
		return 0, nil, r.err
	}
	if policy != c.sec.policy.URI() {
		return 0, nil, fmt.Errorf("the server answers with the security policy %.100q, not %s", policy, c.sec.policy)
	}
	if c.sec.policy == PolicyNone {
		return c.readSequence(&r)
	}
	if string(cert) != string(c.sec.server) || string(receiver) != string(certificateThumbprint(c.sec.identity.Cert)) {
		return 0, nil, errors.New("the server answers with another certificate, or for another")
	}
	head := len(body) - len(r.data)
	text, err := c.sec.policy.decryptRSA(c.sec.identity.Key, r.data)
	if err != nil {
		return 0, nil, err
	}
	n := len(text) - c.sec.key.Size()
	if n < 0 {
		return 0, nil, errShort
	}
	signed := sealedHeader(kind, len(body))
	signed = append(append(signed, body[:head]...), text[:n]...)
	if err := c.sec.policy.verifyRSA(c.sec.key, signed, text[n:]); err != nil {
		return 0, nil, fmt.Errorf("the server's signature: %w", err)
	}
	if text, err = cutPadding(text[:n], c.sec.identity.Key.Size() > 256); err != nil {
		return 0, nil, err
	}
	return c.readSequence(&reader{data: text})
}

// sealedHeader is the type and length before a chunk's body, which its signature covers.
func sealedHeader(kind string, body int) []byte {
	return binary.LittleEndian.AppendUint32([]byte(kind), uint32(body+8))
}

func (c *secureChannel) unseal(kind string, body []byte) (request uint32, plain []byte, err error) {
	r := reader{data: body}
	r.uint32()
	token := r.uint32()
	if r.err != nil {
		return 0, nil, r.err
	}
	c.mu.Lock()
	keys, ok := c.receive[token]
	c.mu.Unlock()
	if !ok {
		return 0, nil, fmt.Errorf("token %d is not of this channel", token)
	}
	if c.sec.mode == ModeNone {
		return c.readSequence(&r)
	}
	text := r.data
	if c.sec.mode == ModeEncrypt {
		if err := keys.decrypt(text); err != nil {
			return 0, nil, err
		}
	}
	n := len(text) - signatureLength
	if n < 0 {
		return 0, nil, errShort
	}
	signed := append(append(sealedHeader(kind, len(body)), body[:8]...), text[:n]...)
	if !hmac.Equal(keys.sign(signed), text[n:]) {
		return 0, nil, errors.New("a message's signature is not right")
	}
	text = text[:n]
	if c.sec.mode == ModeEncrypt {
		if text, err = cutPadding(text, false); err != nil {
			return 0, nil, err
		}
	}
	return c.readSequence(&reader{data: text})
}

// readSequence checks that no message was left out or comes twice.
func (c *secureChannel) readSequence(r *reader) (request uint32, body []byte, err error) {
	sequence, request := r.uint32(), r.uint32()
	if r.err != nil {
		return 0, nil, r.err
	}
	if c.seenAny && sequence != c.nextSequence && sequence >= 1024 { // it begins anew below 1024
		return 0, nil, fmt.Errorf("message %d comes where %d was expected", sequence, c.nextSequence)
	}
	c.seenAny, c.nextSequence = true, sequence+1
	return request, r.data, nil
}

// certificateKey is the public key of a server's certificate.
func certificateKey(der []byte) (*rsa.PublicKey, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		// A server may send its chain: the certificate is the first of it.
		certs, chainErr := x509.ParseCertificates(der)
		if chainErr != nil || len(certs) == 0 {
			return nil, fmt.Errorf("the server's certificate: %w", err)
		}
		cert = certs[0]
	}
	key, ok := cert.PublicKey.(*rsa.PublicKey)
	if !ok {
		return nil, errors.New("the server's certificate has no RSA key")
	}
	return key, checkKey(key)
}
