// SPDX-License-Identifier: Apache-2.0

package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// bbolt trusts its pages: what is wrong in one makes it panic, also where nobody can recover, or lets it
// write over what is in use. So all of them are looked at before it opens a file to write: that each is where
// it says, is reached once or free, and has its elements within it and its keys in order.
//
// The format is bbolt's version 2. Numbers are as the machine has them.

const (
	pageHead    = 16 // id, flags, count, overflow
	elementSize = 16 // leaf: flags, pos, key's size, value's size; branch: pos, key's size, page
	bucketHead  = 16 // root, sequence
	metaSize    = 64

	flagBranch, flagLeaf, flagFreelist = 1, 2, 16

	flagBucket = 1 // of a leaf's element
	firstPage  = 2 // behind the metas
	noFreelist = math.MaxUint64
	manyFree   = math.MaxUint16 // count of a freelist that begins with its length
)

var nativeEndian = binary.NativeEndian

// pageChecker are the pages of a file.
type pageChecker struct {
	file io.ReaderAt
	size uint64 // of one, in bytes
	end  uint64 // after the last one

	seen  []uint64 // a bit for each
	count uint64   // of those seen
}

// CheckPages looks at a database that is open. Nothing may be written meanwhile.
func (f File) CheckPages(db *bbolt.DB) error {
	file, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	err = checkPages(file, db.Info().PageSize)
	return errors.Join(err, file.Close())
}

// checkPages looks at all of them.
func checkPages(file io.ReaderAt, size int) error {
	p := &pageChecker{file: file, size: uint64(size)}
	root, free, err := p.meta()
	if err != nil {
		return err
	}
	p.seen, p.count = make([]uint64, p.end/64+1), firstPage
	if free != noFreelist {
		if err := p.freelist(free); err != nil {
			return err
		}
	}
	if err := p.tree(root, nil, nil); err != nil {
		return err
	}
	if free != noFreelist && p.count != p.end {
		return fmt.Errorf("%d of its %d pages are neither in use nor free", p.end-p.count, p.end)
	}
	return nil
}

// meta reads the newer of the two that is whole.
func (p *pageChecker) meta() (root, free uint64, err error) {
	err = bolterrors.ErrInvalid
	var newest uint64
	b := make([]byte, metaSize)
	for i := range int64(2) {
		if _, failed := p.file.ReadAt(b, i*int64(p.size)+pageHead); failed != nil {
			return 0, 0, failed
		}
		sum := fnv.New64a()
		_, _ = sum.Write(b[:metaSize-8])
		txid := nativeEndian.Uint64(b[48:])
		if nativeEndian.Uint64(b[56:]) != sum.Sum64() || err == nil && txid < newest {
			continue
		}
		newest, err = txid, nil
		root, free, p.end = nativeEndian.Uint64(b[16:]), nativeEndian.Uint64(b[32:]), nativeEndian.Uint64(b[40:])
	}
	if p.end > math.MaxInt64/p.size {
		err = bolterrors.ErrInvalid
	}
	return root, free, err
}

// mark notes that a page has its use.
func (p *pageChecker) mark(id uint64) error {
	if id < firstPage || id >= p.end {
		return fmt.Errorf("page %d is none of its pages", id)
	}
	if p.seen[id/64]&(1<<(id%64)) != 0 {
		return fmt.Errorf("page %d is used twice", id)
	}
	p.seen[id/64] |= 1 << (id % 64)
	p.count++
	return nil
}

// read reads a page with those that it runs over into, and says what it is.
func (p *pageChecker) read(id uint64) (b []byte, flags uint16, err error) {
	if err := p.mark(id); err != nil {
		return nil, 0, err
	}
	b = make([]byte, p.size)
	if _, err := p.file.ReadAt(b, int64(id*p.size)); err != nil {
		return nil, 0, fmt.Errorf("page %d: %w", id, err)
	}
	if is := nativeEndian.Uint64(b); is != id {
		return nil, 0, fmt.Errorf("page %d says that it is page %d", id, is)
	}
	more := uint64(nativeEndian.Uint32(b[12:]))
	for i := range more {
		if err := p.mark(id + 1 + i); err != nil {
			return nil, 0, err
		}
	}
	if more > 0 {
		b = append(b, make([]byte, more*p.size)...)
		if _, err := p.file.ReadAt(b[p.size:], int64((id+1)*p.size)); err != nil {
			return nil, 0, fmt.Errorf("page %d: %w", id, err)
		}
	}
	return b, nativeEndian.Uint16(b[8:]), nil
}

func (p *pageChecker) freelist(id uint64) error {
	b, flags, err := p.read(id)
	if err != nil {
		return err
	}
	ids, n := b[pageHead:], uint64(nativeEndian.Uint16(b[10:]))
	if n == manyFree {
		n, ids = nativeEndian.Uint64(ids), ids[8:]
	}
	if flags != flagFreelist || n > uint64(len(ids)/8) {
		return fmt.Errorf("page %d is no list of free pages", id)
	}
	for i := range n {
		if err := p.mark(nativeEndian.Uint64(ids[8*i:])); err != nil {
			return err
		}
	}
	return nil
}

// tree looks at a page, whose keys are from low to before high, and at all below it. nil is no bound.
func (p *pageChecker) tree(id uint64, low, high []byte) error {
	b, flags, err := p.read(id)
	if err != nil {
		return err
	}
	switch flags {
	case flagLeaf:
		err = p.leaf(b, low, high)
	case flagBranch:
		return p.branch(id, b, low, high)
	default:
		err = errors.New("it is of no kind that is expected")
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

var errElement = errors.New("an element of it goes beyond its end")

// elementPart is what an element at a place in a page says that it has.
func elementPart(b []byte, at int, pos, size uint32) ([]byte, error) {
	from := uint64(at) + uint64(pos)
	if from+uint64(size) > uint64(len(b)) {
		return nil, errElement
	}
	return b[from : from+uint64(size)], nil
}

// countElements is how many a page has.
func countElements(b []byte) (int, error) {
	n := int(nativeEndian.Uint16(b[10:]))
	if pageHead+n*elementSize > len(b) {
		return 0, errElement
	}
	return n, nil
}

// checkKeyOrder says whether a key follows another. The first one of a page is that by which the page above knows
// it, if there is one: bbolt finds a page by it when it puts its successor there.
func checkKeyOrder(first bool, last, key, high []byte) error {
	c := bytes.Compare(last, key)
	wrong := c >= 0
	if first {
		wrong = last != nil && c != 0
	}
	if wrong || high != nil && bytes.Compare(key, high) >= 0 {
		return fmt.Errorf("its keys are not in order: %q", key)
	}
	return nil
}

func (p *pageChecker) branch(id uint64, b, low, high []byte) error {
	n, err := countElements(b)
	if err == nil && n == 0 {
		err = errors.New("there is nothing in it")
	}
	keys := make([][]byte, n)
	for i := 0; i < n && err == nil; i++ {
		at := pageHead + i*elementSize
		if keys[i], err = elementPart(b, at, nativeEndian.Uint32(b[at:]), nativeEndian.Uint32(b[at+4:])); err == nil {
			err = checkKeyOrder(i == 0, low, keys[i], high)
			low = keys[i]
		}
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	for i, key := range keys {
		end := high
		if i+1 < n {
			end = keys[i+1]
		}
		if err := p.tree(nativeEndian.Uint64(b[pageHead+i*elementSize+8:]), key, end); err != nil {
			return err
		}
	}
	return nil
}

func (p *pageChecker) leaf(b, low, high []byte) error {
	n, err := countElements(b)
	for i := 0; i < n && err == nil; i++ {
		at := pageHead + i*elementSize
		pos, key, value := nativeEndian.Uint32(b[at+4:]), nativeEndian.Uint32(b[at+8:]), nativeEndian.Uint32(b[at+12:])
		var both []byte
		if key > math.MaxUint32-value {
			return errElement
		}
		if both, err = elementPart(b, at, pos, key+value); err != nil {
			return err
		}
		if err = checkKeyOrder(i == 0, low, both[:key], high); err != nil {
			return err
		}
		low = both[:key]
		switch nativeEndian.Uint32(b[at:]) {
		case 0:
		case flagBucket:
			if err = p.bucket(both[key:]); err != nil {
				err = fmt.Errorf("%q: %w", low, err)
			}
		default:
			err = fmt.Errorf("%q is of no kind that is known", low)
		}
	}
	return err
}

// bucket looks at one, which has pages of its own or is all in its header's value.
func (p *pageChecker) bucket(b []byte) error {
	if len(b) < bucketHead {
		return errElement
	}
	if root := nativeEndian.Uint64(b); root != 0 {
		return p.tree(root, nil, nil)
	}
	b = b[bucketHead:]
	if len(b) < pageHead || nativeEndian.Uint16(b[8:]) != flagLeaf {
		return errors.New("it is of no kind that is expected")
	}
	return p.leaf(b, nil, nil)
}
