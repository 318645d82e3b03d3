package journal

// Sequence is where the numbers of a sequence begin: records that are numbered, and mostly
// forgotten, in order. Of such a record no more than its place is in memory, 12 bytes. Any
// other may have any smaller number.
const Sequence = 1 << 41

const pageLen = 256

// index says where each live record is.
type index struct {
	others map[uint64]place
	pages  map[uint64]*page // of the sequence, by number
	count  int
}

type page struct {
	count  int
	places [pageLen]place // with size 0: none
}

func newIndex() index {
	return index{others: make(map[uint64]place), pages: make(map[uint64]*page)}
}

func (x *index) get(id uint64) (p place, ok bool) {
	if id < Sequence {
		p, ok = x.others[id]
		return p, ok
	}
	if pg := x.pages[id/pageLen]; pg != nil {
		p = pg.places[id%pageLen]
	}
	return p, p.size > 0
}

func (x *index) put(id uint64, p place) {
	if _, ok := x.get(id); !ok {
		x.count++
	}
	if id < Sequence {
		x.others[id] = p
		return
	}
	pg := x.pages[id/pageLen]
	if pg == nil {
		pg = &page{}
		x.pages[id/pageLen] = pg
	}
	if pg.places[id%pageLen].size == 0 {
		pg.count++
	}
	pg.places[id%pageLen] = p
}

func (x *index) remove(id uint64) {
	if _, ok := x.get(id); !ok {
		return
	}
	x.count--
	if id < Sequence {
		delete(x.others, id)
		return
	}
	pg := x.pages[id/pageLen]
	pg.places[id%pageLen] = place{}
	if pg.count--; pg.count == 0 {
		delete(x.pages, id/pageLen)
	}
}
