// Package files writes the briefings of platform to a folder. This is outside any transaction, so a second delivery of
// a briefing has the same result as the first.
package files
