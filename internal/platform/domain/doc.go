// Package domain holds the rules of platform: what a system card is and which version of it
// stands; what a decision on a rule's proposal is, and what decisions add up to; how failures gather in clusters, when
// a memory is promoted, and what becomes of a curation decision; and what becomes of an agent task. It knows neither
// the database nor the event substrate.
package domain
