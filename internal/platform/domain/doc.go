// Package domain holds the rules of platform: what a system card is and which version of it
// stands; what a decision on a rule's proposal is, and what decisions add up to. It knows neither the
// database nor the event substrate.
package domain
