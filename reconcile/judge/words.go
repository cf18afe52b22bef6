package judge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// listed writes counted words in one order.
func listed(counts map[string]int) string {
	var words []string
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s: %d", word, counts[word]))
	}
	return strings.Join(words, ", ")
}
