// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/scanner"
	"time"
)

// Sample is one series' value at a time.
type sample struct {
	labels map[string]string // without the metric's name; nil for a number that is no series
	value  float64
}

// snapshot is what was measured at a time, by the metric's name.
type snapshot struct {
	at     time.Time
	series map[string][]sample
}

// expression is the part of PromQL that the rules need: metrics with labels, rate, histogram_quantile, arithmetic, comparisons, and, or.
type expression interface {
	// eval is the value by snapshots, of which the last is now.
	eval(of []snapshot) []sample
	// metrics adds the names that are needed.
	metrics(into map[string]bool)
}

type number float64

func (n number) eval([]snapshot) []sample { return []sample{{value: float64(n)}} }
func (number) metrics(map[string]bool)    {}

// series are a metric's, those whose labels are as demanded.
type series struct {
	name   string
	labels map[string]string
	window time.Duration // 0: now
}

func (s series) metrics(into map[string]bool) { into[s.name] = true }

func (s series) eval(of []snapshot) (list []sample) {
	for _, one := range of[len(of)-1].series[s.name] {
		if s.fits(one) {
			list = append(list, one)
		}
	}
	return list
}

func (s series) fits(one sample) bool {
	for k, v := range s.labels {
		if one.labels[k] != v {
			return false
		}
	}
	return true
}

// rate is how much a counter has grown in a second, over a window. A counter that is lower than before has begun anew.
type rate struct{ of series }

func (r rate) metrics(into map[string]bool) { r.of.metrics(into) }

func (r rate) eval(of []snapshot) (list []sample) {
	type growth struct {
		labels      map[string]string
		last, grown float64
		from, to    time.Time
	}
	all := make(map[string]*growth)
	now := of[len(of)-1].at
	for _, shot := range of {
		if now.Sub(shot.at) > r.of.window {
			continue
		}
		for _, one := range shot.series[r.of.name] {
			if !r.of.fits(one) {
				continue
			}
			key := keyOf(one.labels)
			g := all[key]
			if g == nil {
				all[key] = &growth{labels: one.labels, last: one.value, from: shot.at, to: shot.at}
				continue
			}
			if one.value >= g.last {
				g.grown += one.value - g.last
			} else {
				g.grown += one.value
			}
			g.last, g.to = one.value, shot.at
		}
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if g := all[key]; g.to.After(g.from) {
			list = append(list, sample{g.labels, g.grown / g.to.Sub(g.from).Seconds()})
		}
	}
	return list
}

// quantile is what a share of a histogram's observations is below.
type quantile struct {
	share float64
	of    expression
}

func (q quantile) metrics(into map[string]bool) { q.of.metrics(into) }

func (q quantile) eval(of []snapshot) (list []sample) {
	type bucket struct{ le, count float64 }
	buckets, labels := make(map[string][]bucket), make(map[string]map[string]string)
	for _, one := range q.of.eval(of) {
		le, err := strconv.ParseFloat(one.labels["le"], 64)
		if err != nil {
			continue
		}
		rest := maps.Clone(one.labels)
		delete(rest, "le")
		key := keyOf(rest)
		buckets[key], labels[key] = append(buckets[key], bucket{le, one.value}), rest
	}
	for _, key := range slices.Sorted(maps.Keys(buckets)) {
		bs := buckets[key]
		sort.Slice(bs, func(i, j int) bool { return bs[i].le < bs[j].le })
		total := bs[len(bs)-1].count
		if total <= 0 || !math.IsInf(bs[len(bs)-1].le, 1) || len(bs) < 2 {
			continue
		}
		rank := q.share * total
		i := min(sort.Search(len(bs)-1, func(i int) bool { return bs[i].count >= rank }), len(bs)-1)
		value := bs[len(bs)-2].le // beyond the last bound nobody knows
		if i < len(bs)-1 {
			low, below := 0.0, 0.0
			if i > 0 {
				low, below = bs[i-1].le, bs[i-1].count
			}
			value = low + (bs[i].le-low)*(rank-below)/max(bs[i].count-below, math.SmallestNonzeroFloat64)
		}
		list = append(list, sample{labels[key], value})
	}
	return list
}

// binary is two expressions with an operator between them.
type binary struct {
	op          string
	left, right expression
}

func (b binary) metrics(into map[string]bool) {
	b.left.metrics(into)
	b.right.metrics(into)
}

func (b binary) eval(of []snapshot) (list []sample) {
	left, right := b.left.eval(of), b.right.eval(of)
	has := func(in []sample, one sample) (sample, bool) {
		for _, other := range in {
			if other.labels == nil && one.labels == nil || other.labels != nil && one.labels != nil && maps.Equal(other.labels, one.labels) {
				return other, true
			}
		}
		return sample{}, false
	}
	switch b.op {
	case "or":
		list = left
		for _, one := range right {
			if _, there := has(left, one); !there {
				list = append(list, one)
			}
		}
		return list
	case "and":
		for _, one := range left {
			if _, there := has(right, one); there {
				list = append(list, one)
			}
		}
		return list
	}
	pair := func(l, r, labelled sample) {
		if v, keep := applyOperator(b.op, l.value, r.value); keep {
			list = append(list, sample{labelled.labels, v})
		}
	}
	for _, l := range left {
		switch {
		case len(right) == 1 && right[0].labels == nil:
			pair(l, right[0], l)
		case l.labels == nil:
			for _, r := range right {
				pair(l, r, r)
			}
		default:
			if r, there := has(right, l); there {
				pair(l, r, l)
			}
		}
	}
	return list
}

// applyOperator is an operator's result; a comparison keeps the left side, if it holds.
func applyOperator(op string, l, r float64) (v float64, keep bool) {
	switch op {
	case "+":
		return l + r, true
	case "-":
		return l - r, true
	case "*":
		return l * r, true
	case "/":
		return l / r, true
	case "==":
		return l, l == r
	case "!=":
		return l, l != r
	case ">":
		return l, l > r
	case "<":
		return l, l < r
	case ">=":
		return l, l >= r
	default: // "<="
		return l, l <= r
	}
}

func keyOf(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(k + "\x00" + labels[k] + "\x00")
	}
	return b.String()
}

// parser reads an expression.
type parser struct {
	scan  scanner.Scanner
	token string
	kind  rune
}

// parseExpression reads an expression. What it doesn't know is an error.
func parseExpression(text string) (e expression, err error) {
	p := &parser{}
	p.scan.Init(strings.NewReader(text))
	p.scan.Mode = scanner.ScanIdents | scanner.ScanFloats | scanner.ScanInts | scanner.ScanStrings
	p.scan.Error = func(*scanner.Scanner, string) {}
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case parseError:
			err = fmt.Errorf("%s, at %q of %q", string(failed), p.token, text)
		default: // a mistake of this package, which must not pass for an empty expression
			panic(failed)
		}
	}()
	p.next()
	e = p.binary(0)
	if p.kind != scanner.EOF {
		panic(parseError("an operator is expected"))
	}
	return e, nil
}

type parseError string

func (p *parser) next() {
	p.kind = p.scan.Scan()
	p.token = p.scan.TokenText()
	if strings.ContainsAny(p.token, "=!<>") && p.scan.Peek() == '=' {
		p.scan.Next()
		p.token += "="
	}
}

func (p *parser) take(token string) {
	if p.token != token {
		panic(parseError(token + " is expected"))
	}
	p.next()
}

// operators are in order of precedence, those that bind least first.
var operators = [][]string{{"or"}, {"and"}, {"==", "!=", ">", "<", ">=", "<="}, {"+", "-"}, {"*", "/"}}

func (p *parser) binary(level int) expression {
	if level == len(operators) {
		return p.operand()
	}
	e := p.binary(level + 1)
	for slices.Contains(operators[level], p.token) && p.kind != scanner.EOF {
		op := p.token
		p.next()
		e = binary{op, e, p.binary(level + 1)}
	}
	return e
}

func (p *parser) number() float64 {
	v, err := strconv.ParseFloat(p.token, 64)
	if err != nil {
		panic(parseError("a number is expected"))
	}
	p.next()
	return v
}

func (p *parser) operand() expression {
	switch {
	case p.kind == scanner.Int || p.kind == scanner.Float:
		return number(p.number())
	case p.token == "(":
		p.next()
		e := p.binary(0)
		p.take(")")
		return e
	case p.kind != scanner.Ident:
		panic(parseError("a metric, a number or ( is expected"))
	}
	name := p.token
	p.next()
	if p.token != "(" {
		return p.series(name)
	}
	p.next()
	defer p.take(")")
	switch name {
	case "rate":
		if p.kind != scanner.Ident {
			panic(parseError("a metric is expected"))
		}
		of := p.token
		p.next()
		s := p.series(of)
		if s.window == 0 {
			panic(parseError("a window as [5m] is expected"))
		}
		return rate{s}
	case "histogram_quantile":
		share := p.number()
		p.take(",")
		return quantile{share, p.binary(0)}
	}
	panic(parseError(name + " is no function that is known"))
}

// series reads what may follow a metric's name.
func (p *parser) series(name string) series {
	s := series{name: name, labels: make(map[string]string)}
	if p.token == "{" {
		for p.next(); p.token != "}"; {
			label := p.token
			p.next()
			p.take("=")
			value, err := strconv.Unquote(p.token)
			if err != nil {
				panic(parseError("a value in quotes is expected"))
			}
			s.labels[label] = value
			if p.next(); p.token == "," {
				p.next()
			} else if p.token != "}" {
				panic(parseError("} is expected"))
			}
		}
		p.next()
	}
	if p.token == "[" {
		p.next()
		n := p.number()
		unit, known := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[p.token]
		if !known {
			panic(parseError("s, m or h is expected"))
		}
		p.next()
		s.window = time.Duration(n * float64(unit))
		p.take("]")
	}
	return s
}
