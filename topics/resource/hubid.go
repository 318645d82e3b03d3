package resource

import (
	"fmt"
	"strconv"
	"strings"
)

// HubID tells a hub from all others, as far as its data goes: it is drawn with a new store, and
// a backup has it.
type HubID uint32

const hubPrefix = "hub-" // digits alone would be a number to YAML

// String is the form that people see and write.
func (id HubID) String() string { return fmt.Sprintf("%s%08x", hubPrefix, uint32(id)) }

// Text is the same, and empty for none.
func (id HubID) Text() string {
	if id == 0 {
		return ""
	}
	return id.String()
}

// ParseHubID reads what String wrote.
func ParseHubID(text string) (HubID, error) {
	digits, ok := strings.CutPrefix(text, hubPrefix)
	n, err := strconv.ParseUint(digits, 16, 32)
	if id := HubID(n); ok && err == nil && id.String() == text {
		return id, nil
	}
	return 0, fmt.Errorf("%q is no hub's identity, such as %s", text, HubID(0x5f3c2a11))
}
