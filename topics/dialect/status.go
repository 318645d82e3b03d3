package dialect

import (
	"reflect"
	"slices"

	"github.com/edgebus/edgebus/topics/resource"
)

// withStatus is what is stored, in this form, with the status of another: who writes a
// status changes nothing else.
func (k Kind) withStatus(sent tree, old []byte) (tree, error) {
	raw, err := k.Show(old)
	if err != nil {
		return nil, err
	}
	form, err := parse(raw)
	if err != nil {
		return nil, err
	}
	put(form, "status", sent["status"])
	from, err := metadata(sent)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"name", "namespace", "uid", "resourceVersion"} {
		to, _ := form["metadata"].(tree)
		put(to, name, from.fields[name])
	}
	return form, nil
}

// keepStatus puts back what a status has that the form can't express.
func (k Kind) keepStatus(c, prev tree) error {
	form, err := convert(k.from, prev)
	if err != nil {
		return err
	}
	back, err := convert(k.to, form)
	if err != nil {
		return err
	}
	put(c, "status", applyAll("/status", c["status"], differences("/status", back["status"], prev["status"])))
	if k.agent {
		mingle(c, prev)
	}
	return nil
}

// mingle puts the conditions that an agent reports among those that others wrote. Which are its own is remembered: it
// takes one back by reporting it no more. What it only repeats of others is not its own, and of what the hub itself
// says it never is: that may have changed since the agent read it.
func mingle(c, prev tree) {
	status, _ := c["status"].(tree)
	was, _ := prev["status"].(tree)
	if status == nil {
		status = tree{}
	}
	sent, _ := status["conditions"].([]any)
	sent = slices.DeleteFunc(slices.Clone(sent), func(c any) bool { return resource.OfHub(nameOf(c, "type")) })
	old, _ := was["conditions"].([]any)
	before, _ := was["agentConditions"].([]any)
	var all, own []any
	for _, o := range old {
		kind := nameOf(o, "type")
		if s := find(sent, "type", kind); s != nil {
			all = append(all, s)
		} else if resource.OfHub(kind) || !slices.Contains(before, any(kind)) {
			all = append(all, o)
		}
	}
	for _, s := range sent {
		kind := nameOf(s, "type")
		o := find(old, "type", kind)
		if o == nil {
			all = append(all, s)
		}
		if !reflect.DeepEqual(o, s) || slices.Contains(before, any(kind)) {
			own = append(own, kind)
		}
	}
	delete(status, "conditions")
	delete(status, "agentConditions")
	if all != nil {
		status["conditions"] = all
	}
	if own != nil {
		status["agentConditions"] = own
	}
	if len(status) > 0 {
		c["status"] = status
	}
}
