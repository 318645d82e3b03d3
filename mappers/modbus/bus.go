package modbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"slices"
	"time"

	mb "github.com/simonvetter/modbus"
)

// busKey tells connections apart.
type busKey struct {
	url     string
	timeout time.Duration
}

// bus is one connection. Its goroutine makes one request after the other. A Modbus request can't be cancelled: a caller
// whose context ends returns, and the goroutine finishes the request, within one timeout.
type bus struct {
	key      busKey
	shares   int // guarded by Driver.mu
	requests chan busRequest
	ctx      context.Context
	stop     context.CancelFunc

	// the goroutine's
	client    *mb.ModbusClient
	timeout   time.Duration // of requests on this connection
	downUntil time.Time     // don't dial again before
	downErr   error
}

type busRequest struct {
	ctx     context.Context
	unit    uint8
	timeout time.Duration
	do      func(*mb.ModbusClient) error
	done    chan error // capacity 1
}

func newBus(key busKey) *bus {
	b := &bus{key: key, requests: make(chan busRequest)}
	b.ctx, b.stop = context.WithCancel(context.Background())
	go b.run()
	return b
}

func (b *bus) run() {
	defer b.disconnect()
	for {
		select {
		case <-b.ctx.Done():
			return
		case r := <-b.requests:
			r.done <- b.serve(r)
		}
	}
}

// serve does one request. After anything but an answer the connection is in an unknown state, and is made anew: a late
// answer must not be taken for the next one's.
func (b *bus) serve(r busRequest) error {
	if err := r.ctx.Err(); err != nil {
		return err // the caller has given up
	}
	if err := b.dial(r.timeout); err != nil {
		return err
	}
	if err := b.client.SetUnitId(r.unit); err != nil {
		return err
	}
	err := r.do(b.client)
	var answer mb.Error
	if err != nil && (!errors.As(err, &answer) || answer == mb.ErrRequestTimedOut || answer == mb.ErrProtocolError ||
		answer == mb.ErrBadCRC || answer == mb.ErrShortFrame || answer == mb.ErrBadUnitId || answer == mb.ErrBadTransactionId) {
		b.disconnect()
	}
	return err
}

// dial connects. The time-out of requests belongs to the connection, which is made anew for another. When a dial has just
// failed it fails again at once: ten units behind a dead gateway wait for one dial, not for ten.
func (b *bus) dial(timeout time.Duration) error {
	if b.client != nil && b.timeout == timeout {
		return nil
	}
	b.disconnect()
	if time.Now().Before(b.downUntil) {
		return b.downErr
	}
	c, err := mb.NewClient(&mb.ClientConfiguration{
		URL: b.key.url, Timeout: timeout, Logger: log.New(io.Discard, "", 0),
	})
	if err == nil {
		err = c.Open()
	}
	if err != nil {
		b.downErr = fmt.Errorf("connect to %s: %w", b.key.url, err)
		b.downUntil = time.Now().Add(time.Second)
		return b.downErr
	}
	b.client, b.timeout, b.downUntil = c, timeout, time.Time{}
	return nil
}

func (b *bus) disconnect() {
	if b.client != nil {
		_ = b.client.Close()
		b.client = nil
	}
}

// call queues a request and waits for its end or ctx's.
func (b *bus) call(ctx context.Context, unit uint8, do func(*mb.ModbusClient) error) error {
	return b.callWithin(ctx, unit, b.key.timeout, do)
}

func (b *bus) callWithin(ctx context.Context, unit uint8, timeout time.Duration, do func(*mb.ModbusClient) error) error {
	r := busRequest{ctx: ctx, unit: unit, timeout: timeout, do: do, done: make(chan error, 1)}
	select {
	case b.requests <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-b.ctx.Done():
		return errClosed
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read returns a group's registers, bits as 0 and 1.
func (b *bus) read(ctx context.Context, unit uint8, g registerGroup) (words []uint16, err error) {
	answer := make(chan []uint16, 1) // the request may outlive this call: it must not write to the result
	err = b.call(ctx, unit, func(c *mb.ModbusClient) (err error) {
		words, err := g.read(c)
		answer <- words
		return err
	})
	if err != nil {
		return nil, err
	}
	if words = <-answer; len(words) != int(g.size) {
		return nil, fmt.Errorf("modbus: unit %d answered %d of %d registers", unit, len(words), g.size)
	}
	return words, nil
}

// write writes a field. Some bits of a register are changed by reading the register and writing it back.
func (b *bus) write(ctx context.Context, unit uint8, f *registerField, words []uint16) error {
	return b.call(ctx, unit, func(c *mb.ModbusClient) error {
		switch {
		case f.table == tableCoil:
			return c.WriteCoil(f.address, words[0] != 0)
		case f.kind == kindBit:
			was, err := c.ReadRegister(f.address, mb.HOLDING_REGISTER)
			if err != nil {
				return err
			}
			return c.WriteRegister(f.address, was&^(1<<f.bit)|words[0]<<f.bit)
		case f.width > 0:
			was, err := c.ReadRegisters(f.address, f.words, mb.HOLDING_REGISTER)
			if err != nil {
				return err
			}
			if len(was) != len(words) {
				return fmt.Errorf("modbus: unit %d answered %d of %d registers", unit, len(was), len(words))
			}
			words = f.splitWords(f.joinWords(was)&^(f.mask()<<f.bit) | f.joinWords(words))
			if len(words) > 1 {
				return c.WriteRegisters(f.address, words)
			}
			return c.WriteRegister(f.address, words[0])
		case len(words) == 1:
			return c.WriteRegister(f.address, words[0])
		}
		return c.WriteRegisters(f.address, words)
	})
}

// Limits of one request, by the standard.
const (
	maxRegisters = 125
	maxBits      = 2000
)

// registerGroup is what one request reads: registers next to each other, and the fields in them.
type registerGroup struct {
	table   registerTable
	address uint16
	size    uint16
	fields  []*registerField
}

func (g registerGroup) String() string {
	return fmt.Sprintf("%s %d..%d", g.table, g.address, g.address+g.size-1)
}

// singleGroup is a group of one field.
func singleGroup(f *registerField) registerGroup {
	address, size := f.span()
	return registerGroup{f.table, address, size, []*registerField{f}}
}

// planGroups groups fields into as few requests as possible. gap is how many unused registers may be read between two fields.
func planGroups(fields []*registerField, gap uint16) (list []registerGroup) {
	fields = slices.Clone(fields)
	slices.SortStableFunc(fields, func(a, b *registerField) int {
		from, _ := a.span()
		to, _ := b.span()
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(from, to))
	})
	for _, f := range fields {
		if n := len(list); n > 0 && list[n-1].takes(f, gap) {
			g := &list[n-1]
			g.fields = append(g.fields, f)
			address, size := f.span()
			g.size = max(g.size, address+size-g.address)
			continue
		}
		list = append(list, singleGroup(f))
	}
	return list
}

func (g registerGroup) takes(f *registerField, gap uint16) bool {
	most := maxRegisters
	if g.table.bits() {
		most = maxBits
	}
	address, size := f.span()
	end := int(address) + int(size) - int(g.address)
	return f.table == g.table && int(address) <= int(g.address)+int(g.size)+int(gap) && end <= most
}

// split makes a group of each field.
func (g registerGroup) split() (list []registerGroup) {
	for _, f := range g.fields {
		list = append(list, singleGroup(f))
	}
	return list
}

func (g registerGroup) read(c *mb.ModbusClient) ([]uint16, error) {
	var bits []bool
	var err error
	switch g.table {
	case tableHolding:
		return c.ReadRegisters(g.address, g.size, mb.HOLDING_REGISTER)
	case tableInput:
		return c.ReadRegisters(g.address, g.size, mb.INPUT_REGISTER)
	case tableCoil:
		bits, err = c.ReadCoils(g.address, g.size)
	case tableDiscrete:
		bits, err = c.ReadDiscreteInputs(g.address, g.size)
	}
	words := make([]uint16, len(bits))
	for i, b := range bits {
		if b {
			words[i] = 1
		}
	}
	return words, err
}
