// Package domain holds the rules of worlds: world model cards, scans and their findings, the health of rules, and rule
// candidates with the decisions about them. It knows neither the database nor events.
package domain
